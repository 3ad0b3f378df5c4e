//! The README has the table of functions, as the crate has it.

use gosched_hook::FUNCTIONS;

fn table() -> String {
    let mut text = String::from("| function | on a goroutine | left to libc |\n|---|---|---|\n");
    for function in FUNCTIONS {
        let names: Vec<_> = std::iter::once(&function.name())
            .chain(function.aliases())
            .map(|name| format!("`{name}`"))
            .collect();
        let (names, strategy, fallback) =
            (names.join(", "), function.strategy(), function.fallback());
        text += &format!("| {names} | {strategy} | {fallback} |\n");
    }
    text
}

/// `GOSCHED_HOOK_WRITE=1` writes the table.
#[test]
#[cfg(all(feature = "net", feature = "sync", feature = "thread"))]
fn the_readme_has_every_function() {
    const BEGIN: &str = "<!-- table: begin -->\n";
    const END: &str = "<!-- table: end -->";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let readme = std::fs::read_to_string(path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).unwrap();
    let (has, after) = rest.split_once(END).unwrap();
    if std::env::var_os("GOSCHED_HOOK_WRITE").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
        return;
    }
    assert_eq!(
        has,
        table(),
        "run this test with GOSCHED_HOOK_WRITE=1 and --all-features"
    );
}

#[test]
fn names_are_given_once() {
    let mut names: Vec<_> = FUNCTIONS
        .iter()
        .flat_map(|f| std::iter::once(f.name()).chain(f.aliases().iter().copied()))
        .collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(!table().is_empty());
}

#[test]
fn every_function_of_this_program_is_the_hook() {
    gosched_hook::install().unwrap();
}
