//! `docs/soundness.md` names every `unsafe impl Send` and `unsafe impl Sync` of the library.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The types of a file that have such an implementation.
fn types_of(source: &str) -> impl Iterator<Item = String> {
    source.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("unsafe impl")?;
        let at = [" Send for ", " Sync for "]
            .iter()
            .find_map(|what| rest.find(what).map(|at| at + what.len()))?;
        let name = rest[at..].split(|c: char| !c.is_alphanumeric() && c != '_');
        name.into_iter().next().map(str::to_owned)
    })
}

fn collect(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.extend(types_of(&fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn every_unsafe_impl_of_an_auto_trait_is_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("../../docs/soundness.md")).unwrap();
    let (_, table) = page.split_once("## Every `unsafe impl`").unwrap();
    let mut found = BTreeSet::new();
    collect(&root.join("src"), &mut found);
    assert!(found.len() > 20, "{found:?}");
    let missing: Vec<_> = found
        .iter()
        .filter(|name| !table.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "not in docs/soundness.md: {missing:?}");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.flat_map(|row| row.split('|').next().unwrap().split("`, `"));
    let gone: Vec<_> = names
        .map(|name| name.trim_end().trim_end_matches('`'))
        .filter(|name| !found.contains(*name))
        .collect();
    assert!(gone.is_empty(), "only in docs/soundness.md: {gone:?}");
}

#[test]
fn the_search_finds_what_it_looks_for() {
    let source = "unsafe impl<T: Send> Sync for Lock<T> {}\n    unsafe impl Send for Glibc {}\nimpl Send for No {}";
    assert_eq!(types_of(source).collect::<Vec<_>>(), ["Lock", "Glibc"]);
}

/// Whether a type is Send and whether it is Sync: an inherent constant hides the trait's where its
/// bound holds.
struct Probe<T: ?Sized>(std::marker::PhantomData<T>);

trait No {
    const IS_SEND: bool = false;
    const IS_SYNC: bool = false;
}

impl<T: ?Sized> No for Probe<T> {}

impl<T: ?Sized + Send> Probe<T> {
    const IS_SEND: bool = true;
}

impl<T: ?Sized + Sync> Probe<T> {
    const IS_SYNC: bool = true;
}

macro_rules! auto {
    ($type:ty) => {
        (<Probe<$type>>::IS_SEND, <Probe<$type>>::IS_SYNC)
    };
}

/// Values of every kind: Send and Sync, Send only, Sync only, neither.
macro_rules! as_std {
    ($($ours:ident)::+ == $($theirs:ident)::+ for $($lifetime:lifetime)?) => {{
        use std::cell::Cell;
        use std::rc::Rc;
        type Guard = std::sync::MutexGuard<'static, i32>;
        let ours = [
            auto!($($ours)::+<$($lifetime,)? i32>),
            auto!($($ours)::+<$($lifetime,)? Cell<i32>>),
            auto!($($ours)::+<$($lifetime,)? Guard>),
            auto!($($ours)::+<$($lifetime,)? Rc<i32>>),
        ];
        let theirs = [
            auto!($($theirs)::+<$($lifetime,)? i32>),
            auto!($($theirs)::+<$($lifetime,)? Cell<i32>>),
            auto!($($theirs)::+<$($lifetime,)? Guard>),
            auto!($($theirs)::+<$($lifetime,)? Rc<i32>>),
        ];
        assert_eq!(ours, theirs, "{}", stringify!($($ours)::+));
    }};
}

#[test]
fn types_that_replace_stds_are_send_and_sync_where_those_are() {
    assert_eq!(auto!(std::cell::Cell<i32>), (true, false), "the probe");
    assert_eq!(auto!(std::rc::Rc<i32>), (false, false), "the probe");
    as_std!(gosched::sync::Mutex == std::sync::Mutex for);
    as_std!(gosched::sync::MutexGuard == std::sync::MutexGuard for 'static);
    as_std!(gosched::sync::RwLock == std::sync::RwLock for);
    as_std!(gosched::sync::RwLockReadGuard == std::sync::RwLockReadGuard for 'static);
    as_std!(gosched::sync::RwLockWriteGuard == std::sync::RwLockWriteGuard for 'static);
    as_std!(gosched::sync::OnceLock == std::sync::OnceLock for);
    as_std!(gosched::sync::LazyLock == std::sync::LazyLock for);
    as_std!(gosched::thread::JoinHandle == std::thread::JoinHandle for);
    // std's mpsc::Sender is Sync as crossbeam's; its Receiver is single.
    as_std!(gosched::chan::Sender == std::sync::mpsc::Sender for);
    as_std!(gosched::chan::Receiver == std::sync::mpsc::Sender for);
    as_std!(gosched::sync::mpsc::Sender == std::sync::mpsc::Sender for);
    as_std!(gosched::sync::mpsc::SyncSender == std::sync::mpsc::SyncSender for);
    as_std!(gosched::sync::mpsc::Receiver == std::sync::mpsc::Receiver for);
    as_std!(gosched::sync::mpsc::IntoIter == std::sync::mpsc::IntoIter for);
    as_std!(gosched::sync::mpsc::Iter == std::sync::mpsc::Iter for 'static);
    as_std!(gosched::sync::mpsc::TryIter == std::sync::mpsc::TryIter for 'static);
}

/// Every result of a scoped goroutine is Send, which std's handle asks for anew.
#[test]
fn handles_of_a_scope_are_send_and_sync() {
    type Ours = gosched::thread::ScopedJoinHandle<'static, std::cell::Cell<i32>>;
    type Theirs = std::thread::ScopedJoinHandle<'static, std::cell::Cell<i32>>;
    assert_eq!(auto!(Ours), auto!(Theirs));
    assert_eq!(auto!(Ours), (true, true));
}

#[test]
fn a_select_is_send_and_sync_and_its_operation_is_neither() {
    assert_eq!(auto!(gosched::chan::Select<'static>), (true, true));
    assert_eq!(
        auto!(gosched::chan::SelectedOperation<'static>),
        (false, false)
    );
}

#[test]
fn what_carries_no_values_of_users_is_send_and_sync() {
    assert_eq!(auto!(gosched::Runtime), (true, true));
    assert_eq!(auto!(gosched::Handle), (true, true));
    assert_eq!(auto!(gosched::context::Context), (true, true));
    assert_eq!(auto!(gosched::time::Timer), (true, true));
    assert_eq!(auto!(gosched::time::Ticker), (true, true));
    assert_eq!(auto!(gosched::thread::Thread), (true, true));
}

#[test]
fn descriptors_and_processes_are_send_and_sync_where_stds_are() {
    macro_rules! same {
        ($($ours:ty => $theirs:ty;)*) => {
            $(assert_eq!(auto!($ours), auto!($theirs), "{}", stringify!($ours));)*
        };
    }
    same! {
        gosched::io::PipeReader => std::io::PipeReader;
        gosched::io::PipeWriter => std::io::PipeWriter;
        gosched::io::Stdin => std::io::Stdin;
        gosched::io::StdinLock<'static> => std::io::StdinLock<'static>;
        gosched::process::Command => std::process::Command;
        gosched::process::Child => std::process::Child;
        gosched::process::ChildStdout => std::process::ChildStdout;
        gosched::io::Pollable<std::fs::File> => std::fs::File;
        gosched::io::Pollable<std::rc::Rc<std::fs::File>> => std::rc::Rc<std::fs::File>;
    }
}
