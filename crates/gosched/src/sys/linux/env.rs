//! Settings from the environment, read once at start.
//!
//! They let a user debug a program without rebuilding it. `GOSCHED_DEBUG` is a list
//! `key=value,key=value`. Pieces that do not parse are kept as `unknown`, so that a misspelt key is
//! reported and not ignored.

/// The variable with diagnostic switches.
const DEBUG_VARIABLE: &str = "GOSCHED_DEBUG";

/// A variable that holds a whole number; `None` if it is unset or anything else; CONTEXT: user.
pub(crate) fn env_usize(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// The diagnostic switches of `GOSCHED_DEBUG`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct DebugEnv {
    /// Print a line about the scheduler at this interval, in milliseconds.
    pub(crate) schedtrace_ms: Option<u64>,
    /// Make that line a full report of every P, M and G.
    pub(crate) scheddetail: bool,
    /// Never interrupt a goroutine by a signal.
    pub(crate) asyncpreemptoff: bool,
    /// How long a goroutine may compute while others wait, in milliseconds.
    pub(crate) slice_ms: Option<u64>,
    /// Leave libc's room for static thread-locals to libraries that are loaded later.
    pub(crate) keepstatictls: bool,
    /// Disturb the scheduler's timing at random, from this seed.
    pub(crate) chaos: Option<u64>,
    /// Pieces that did not parse, as written.
    pub(crate) unknown: Vec<String>,
}

impl DebugEnv {
    /// Reads the process's own `GOSCHED_DEBUG`; CONTEXT: user.
    pub(crate) fn read() -> DebugEnv {
        let text = std::env::var_os(DEBUG_VARIABLE).unwrap_or_default();
        DebugEnv::parse(&text.to_string_lossy())
    }

    /// Parses a list; the last value of a repeated key counts; CONTEXT: user.
    pub(crate) fn parse(text: &str) -> DebugEnv {
        let mut env = DebugEnv::default();
        let pieces = text.split(',').map(str::trim);
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            if env.apply(piece).is_none() {
                env.unknown.push(piece.to_owned());
            }
        }
        env
    }

    /// Applies one `key=value`; `None` if it does not parse.
    fn apply(&mut self, piece: &str) -> Option<()> {
        let (key, value) = piece.split_once('=')?;
        let value: u64 = value.trim().parse().ok()?;
        match key.trim() {
            // As in Go, 0 turns a switch off.
            "schedtrace" => self.schedtrace_ms = (value > 0).then_some(value),
            "scheddetail" => self.scheddetail = value > 0,
            "asyncpreemptoff" => self.asyncpreemptoff = value > 0,
            "slicems" => self.slice_ms = (value > 0).then_some(value),
            "keepstatictls" => self.keepstatictls = value > 0,
            "chaos" => self.chaos = (value > 0).then_some(value),
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_means_everything_off() {
        for text in [
            "",
            ",",
            " , ,",
            "schedtrace=0,scheddetail=0,asyncpreemptoff=0,slicems=0,keepstatictls=0,chaos=0",
            "chaos=7,chaos=0",
        ] {
            assert_eq!(DebugEnv::parse(text), DebugEnv::default(), "{text:?}");
        }
    }

    #[test]
    fn known_keys_are_taken_over() {
        let env = DebugEnv::parse("schedtrace=1000,scheddetail=1, asyncpreemptoff = 1 ");
        assert_eq!(env.schedtrace_ms, Some(1000));
        assert!(env.scheddetail && env.asyncpreemptoff && env.unknown.is_empty());
        assert!(!env.keepstatictls && DebugEnv::parse("keepstatictls=1").keepstatictls);
        assert_eq!(DebugEnv::parse("slicems=1").slice_ms, Some(1));
        let env = DebugEnv::parse("schedtrace=5,schedtrace=7");
        assert_eq!(env.schedtrace_ms, Some(7));
        let env = DebugEnv::parse("chaos=18446744073709551615");
        assert_eq!((env.chaos, env.schedtrace_ms), (Some(u64::MAX), None));
    }

    #[test]
    fn the_rest_is_kept_as_written() {
        let text = "schedtrace,x=1,scheddetail=yes,schedtrace=-1,chaos=0x7,schedtrace=9";
        let env = DebugEnv::parse(text);
        let unknown = [
            "schedtrace",
            "x=1",
            "scheddetail=yes",
            "schedtrace=-1",
            "chaos=0x7",
        ];
        assert_eq!(env.unknown, unknown);
        assert_eq!((env.schedtrace_ms, env.scheddetail), (Some(9), false));
    }

    #[test]
    fn numbers_come_from_variables_or_not_at_all() {
        assert_eq!(env_usize("GOSCHED_NO_SUCH_VARIABLE"), None);
        assert_eq!(env_usize(""), None);
        // PATH is set wherever tests run, and is no number.
        assert_eq!(env_usize("PATH"), None);
    }
}
