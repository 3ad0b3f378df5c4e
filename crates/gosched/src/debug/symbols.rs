//! Turns return addresses into functions, files and lines, and selects the frames worth showing.
//!
//! A stack begins with the runtime's own frames (park, suspend) and ends with the goroutine's
//! entry. Both ends are cut. So the first line is the call by which the goroutine left its own
//! code, and the last line is the closure that it was started with. At least one frame stays.
//!
//! All of this allocates and takes the locks of the `backtrace` crate: in user context only.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use crate::arch;
use crate::base::real_thread::real_threads;
use crate::sched::model::current::current_g;
use crate::sys::objects;

/// Stack that a symboliser may need. Its parsers keep large values on the stack, and larger ones
/// without optimisation.
const ROOM: usize = if cfg!(debug_assertions) {
    512 << 10
} else {
    128 << 10
};
/// The stack of the helper thread, for callers that have less.
const HELPER_STACK: usize = 4 << 20;

/// One function on a goroutine's stack.
///
/// Displays as Go's frames do: the function, and on a line of its own, indented by a tab,
/// `file:line`.
///
/// None of its methods blocks.
///
/// ```
/// gosched::run(|| {
///     let dump = gosched::debug::dump();
///     let frame = &dump.goroutines()[0].frames()[0];
///     println!("{} at {:?}:{:?}", frame.function(), frame.file(), frame.line());
/// });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    function: Arc<str>,
    file: Option<Arc<str>>,
    line: Option<u32>,
}

impl Frame {
    /// The function's path, or its address where there is no symbol.
    ///
    /// See the example of [`Frame`].
    #[must_use]
    pub fn function(&self) -> &str {
        &self.function
    }

    /// The source file, if there is debug information.
    ///
    /// See the example of [`Frame`].
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The line in the source file.
    ///
    /// See the example of [`Frame`].
    #[must_use]
    pub fn line(&self) -> Option<u32> {
        self.line
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "\n\t{file}:{line}"),
            (Some(file), None) => write!(f, "\n\t{file}"),
            (None, _) => f.write_str("\n\t??"),
        }
    }
}

/// A cache of lookups: many goroutines have the same stack.
#[derive(Default)]
pub(super) struct Symbols {
    /// No lookups: frames are shown as addresses.
    addresses_only: bool,
    by_pc: HashMap<usize, Vec<Frame>>,
    by_stack: HashMap<Vec<usize>, Arc<[Frame]>>,
}

impl Symbols {
    pub(super) fn addresses_only() -> Symbols {
        Symbols {
            addresses_only: true,
            ..Symbols::default()
        }
    }

    /// The frames of a stack, innermost first, without the runtime's own.
    pub(super) fn stack(&mut self, pcs: &[usize]) -> Arc<[Frame]> {
        if let Some(known) = self.by_stack.get(pcs) {
            return Arc::clone(known);
        }
        let frames = self.whole_stack(pcs);
        let frames: Arc<[Frame]> = if self.addresses_only {
            frames.into()
        } else {
            trim(&frames).into()
        };
        self.by_stack.insert(pcs.to_vec(), Arc::clone(&frames));
        frames
    }

    /// The frames of a stack, innermost first, all of them.
    pub(super) fn whole_stack(&mut self, pcs: &[usize]) -> Vec<Frame> {
        let mut frames = Vec::with_capacity(pcs.len());
        for pc in pcs {
            let found = self.by_pc.entry(*pc).or_insert_with(|| {
                if self.addresses_only {
                    vec![unknown(*pc)]
                } else {
                    resolve(*pc)
                }
            });
            frames.extend_from_slice(found);
        }
        frames
    }
}

/// The functions at an address, innermost first: several where calls were inlined.
fn resolve(pc: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    let _served = objects::serve();
    backtrace::resolve(pc as *mut c_void, |symbol| {
        // The alternate form leaves the hash out.
        let name = symbol.name().map(|name| format!("{name:#}"));
        frames.push(Frame {
            function: name.unwrap_or_else(|| format!("{pc:#x}")).into(),
            file: symbol.filename().map(|file| file.to_string_lossy().into()),
            line: symbol.lineno(),
        });
    });
    if frames.is_empty() {
        frames.push(unknown(pc));
    }
    frames
}

fn unknown(pc: usize) -> Frame {
    Frame {
        function: format!("{pc:#x}").into(),
        file: None,
        line: None,
    }
}

/// The frames without the runtime's own at both ends.
fn trim(frames: &[Frame]) -> &[Frame] {
    let top = frames
        .iter()
        .take_while(|frame| is_runtime(frame) || is_glue(frame))
        .count();
    let Some(cut) = frames[..top].iter().rposition(is_runtime) else {
        return keep_one(frames, trim_end(frames));
    };
    let rest = &frames[cut + 1..];
    if rest.is_empty() {
        return &frames[cut..=cut];
    }
    keep_one(rest, trim_end(rest))
}

fn keep_one<'a>(all: &'a [Frame], trimmed: &'a [Frame]) -> &'a [Frame] {
    if trimmed.is_empty() {
        &all[..all.len().min(1)]
    } else {
        trimmed
    }
}

fn trim_end(frames: &[Frame]) -> &[Frame] {
    let entry = frames
        .iter()
        .rev()
        .take_while(|frame| is_ours(frame) || is_glue(frame))
        .count();
    &frames[..frames.len() - entry]
}

/// A function of the runtime that no user calls.
fn is_runtime(frame: &Frame) -> bool {
    const ROOMS: [&str; 9] = [
        "arch",
        "base",
        "debug",
        "hook",
        "interpose",
        "sched",
        "stack",
        "sys",
        "tls",
    ];
    let begins = |rest: &str, end: &str| {
        ROOMS.iter().any(|room| {
            let rest = rest.strip_prefix(room);
            rest.is_some_and(|rest| rest.starts_with(end))
        })
    };
    let path = path(frame).strip_prefix("gosched::");
    path.is_some_and(|rest| begins(rest, "::"))
        || own_file(frame).is_some_and(|rest| begins(rest, "/"))
        || is_hook(frame)
        || is_ours(frame) && BEHIND.iter().any(|name| frame.function().contains(name))
}

/// A function of `gosched-hook`, which stands in for one of libc. A hook itself, such as `recv`,
/// has no path: its file decides.
fn is_hook(frame: &Frame) -> bool {
    let in_sources = |file: &str| {
        let (_, rest) = file.split_once("gosched-hook")?;
        let (_version, rest) = rest.split_once('/')?;
        Some(rest.starts_with("src/"))
    };
    path(frame).starts_with("gosched_hook::") || frame.file().and_then(in_sources) == Some(true)
}

/// Functions behind the public ones of `thread`.
const BEHIND: [&str; 2] = ["wait_timed", "RawHandle"];

/// Any function of this crate or of its hooks.
fn is_ours(frame: &Frame) -> bool {
    path(frame).starts_with("gosched::") || own_file(frame).is_some() || is_hook(frame)
}

/// A function that the compiler or the standard library puts between a closure and its caller.
fn is_glue(frame: &Frame) -> bool {
    const PATHS: [&str; 8] = [
        "core::",
        "std::",
        "alloc::",
        "backtrace::",
        "__rust_",
        "_Unwind_",
        "rust_",
        "0x",
    ];
    const FILES: [&str; 4] = [
        "/library/core/src/",
        "/library/std/src/",
        "/library/alloc/src/",
        "/backtrace-0.3.",
    ];
    let path = path(frame);
    PATHS.iter().any(|prefix| path.starts_with(prefix))
        || frame
            .file()
            .is_some_and(|file| FILES.iter().any(|part| file.contains(part)))
}

/// The frame's file relative to this crate's sources, if it is one of them. Builds with line tables
/// only have the last part of a function's path, so the file decides whose function it is.
fn own_file(frame: &Frame) -> Option<&str> {
    let sources = file!().strip_suffix("debug/symbols.rs")?;
    let (before, rest) = frame.file()?.split_once(sources)?;
    (before.is_empty() || before.ends_with('/')).then_some(rest)
}

/// The path without the brackets of `<Type as Trait>::method`.
fn path(frame: &Frame) -> &str {
    frame.function.trim_start_matches(['<', '&', '*'])
}

/// Runs `f` with enough stack for a symboliser: here, or on a helper thread. None if there can be
/// no such thread.
pub(super) fn with_room<R: Send>(f: impl FnOnce() -> R + Send) -> Option<R> {
    let sp = arch::stack_pointer();
    // If the goroutine has switched to a stack of its own, the runtime does not know how much of
    // that is left.
    if current_g().is_none_or(|g| g.is_own_stack(sp) && sp - g.stack_lo.get() >= ROOM) {
        return Some(f());
    }
    on_thread(f)
}

/// Runs `f` on a helper thread, and waits for it.
pub(super) fn on_thread<R: Send>(f: impl FnOnce() -> R + Send) -> Option<R> {
    std::thread::scope(|scope| {
        let helper = std::thread::Builder::new()
            .name("gosched-symbols".into())
            .stack_size(HELPER_STACK);
        let helper = real_threads(|| helper.spawn_scoped(scope, f));
        helper.ok()?.join().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str) -> Frame {
        Frame {
            function: function.into(),
            file: None,
            line: None,
        }
    }

    fn trimmed(functions: &[&str]) -> Vec<String> {
        let frames: Vec<_> = functions.iter().map(|f| frame(f)).collect();
        trim(&frames)
            .iter()
            .map(|frame| frame.function().to_owned())
            .collect()
    }

    #[test]
    fn both_ends_are_cut() {
        let got = trimmed(&[
            "backtrace::backtrace::libunwind::trace",
            "gosched::sched::model::switch::backtrace_here",
            "gosched::sched::model::switch::suspend",
            "gosched::sched::park::park",
            "gosched::thread::park::park",
            "app::wait",
            "std::sync::once::Once::call_once",
            "app::main::{{closure}}",
            "<core::panic::unwind_safe::AssertUnwindSafe<F> as core::ops::function::FnOnce<()>>::call_once",
            "std::panicking::catch_unwind",
            "__rust_try",
            "gosched::thread::packet::spawn_raw::{{closure}}",
            "gosched::base::closure::Table::of::finish",
            "gosched::sched::exit::goroutine_entry",
            "gosched::arch::x86_64::trampoline",
        ]);
        let expected = [
            "gosched::thread::park::park",
            "app::wait",
            "std::sync::once::Once::call_once",
            "app::main::{{closure}}",
        ];
        assert_eq!(got, expected);
    }

    #[test]
    fn hooks_are_cut() {
        let hook = |function: &str, file: &str| Frame {
            function: function.into(),
            file: Some(file.into()),
            line: Some(1),
        };
        let frames = [
            frame("gosched::sched::park::park"),
            frame("gosched::hook::futex::wait"),
            frame("gosched_hook::futex::Call::wait"),
            hook("syscall", "/somewhere/crates/gosched-hook/src/futex.rs"),
            hook("call", "/crates/gosched-hook-0.1.0/src/futex.rs"),
            frame("std::sys::pal::unix::futex::futex_wait"),
            hook("wait", "/somewhere/crates/gosched-hook/tests/futex/main.rs"),
            frame("std::thread::lifecycle::spawn_unchecked"),
            frame("gosched_hook::threads::Closure::run"),
            frame("gosched::hook::threads::run"),
            frame("gosched::sched::exit::goroutine_entry"),
        ];
        assert_eq!(trim(&frames), &frames[5..7]);
    }

    #[test]
    fn something_is_always_left() {
        let got = trimmed(&[
            "gosched::sched::model::switch::suspend",
            "gosched::thread::park::park",
            "core::ops::function::FnOnce::call_once",
            "gosched::sched::exit::goroutine_entry",
        ]);
        assert_eq!(got, ["gosched::thread::park::park"]);
        let got = trimmed(&[
            "gosched::sched::model::switch::suspend",
            "gosched::sched::park::park",
        ]);
        assert_eq!(got, ["gosched::sched::park::park"]);
        assert_eq!(trimmed(&["std::a"]), ["std::a"]);
        assert!(trimmed(&[]).is_empty());
        let got = trimmed(&["gosched_bench::main", "app::main"]);
        assert_eq!(got, ["gosched_bench::main", "app::main"]);
    }

    #[test]
    fn files_tell_where_names_do_not() {
        let at = |function: &str, file: &str| Frame {
            function: function.into(),
            file: Some(file.into()),
            line: Some(1),
        };
        let ours = |file: &str| format!("/somewhere/{}", file!().replace("debug/symbols.rs", file));
        let frames = [
            at("trace", "/r/backtrace-0.3.1/src/lib.rs"),
            at("switch", &ours("arch/x86_64.rs")),
            at("mcall", &ours("sched/park.rs")),
            at("park", &ours("thread/park.rs")),
            at("wait", "/app/src/main.rs"),
            at("call_once<F>", "/rustc/1/library/core/src/ops/function.rs"),
            at("goroutine_entry", &ours("sched/exit.rs")),
        ];
        assert_eq!(trim(&frames), &frames[3..5]);
    }

    #[test]
    fn an_address_without_a_symbol_is_shown_as_such() {
        assert_eq!(resolve(16)[0].function(), "0x10");
        assert_eq!(resolve(16)[0].to_string(), "0x10\n\t??");
        let here = resolve(resolve as *const () as usize + 1);
        assert!(here.iter().any(|f| f.function().contains("resolve")));
    }

    #[test]
    fn the_helper_thread_answers() {
        assert_eq!(on_thread(|| 7), Some(7));
        assert_eq!(with_room(|| 8), Some(8));
    }
}
