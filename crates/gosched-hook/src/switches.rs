//! Which hooks are on, and whether the program's calls reach them.
//!
//! The environment variable `GOSCHED_HOOK` turns hooks off, to find the hook that breaks a program.
//! This crate reads the variable before `main` begins.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use crate::table::{FUNCTIONS, Function};

/// Runs before `main`, and before constructors of the program that come later in the order of the
/// link.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn begin() {
        for function in FUNCTIONS {
            function.real.address();
        }
        #[cfg(feature = "sync")]
        gosched::hook::futex::prepare();
        // SAFETY: the name is a text with a zero byte. No other thread exists yet that could change
        // the environment.
        let value = unsafe { libc::getenv(c"GOSCHED_HOOK".as_ptr()) };
        if !value.is_null() {
            // SAFETY: `getenv` returns a text with a zero byte, which stays while the environment
            // does not change.
            let text = unsafe { CStr::from_ptr(value) };
            if let Err(error) = apply(&text.to_string_lossy()) {
                _ = BAD_SETTING.set(error);
            }
        }
    }
    begin
};

/// The first unknown word of `GOSCHED_HOOK`.
static BAD_SETTING: OnceLock<String> = OnceLock::new();

/// Applies the words of `GOSCHED_HOOK` up to the first unknown one: `on`, `off`, `wake-always`, and
/// `-NAME` with the name of a function or of a family.
fn apply(text: &str) -> Result<(), String> {
    for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
        let mut found = false;
        for function in FUNCTIONS.iter().filter(|f| matches(f, word)) {
            function.is_off.store(true, Relaxed);
            found = true;
        }
        #[cfg(feature = "sync")]
        if word == "wake-always" {
            gosched::hook::futex::always_enter_kernel();
            found = true;
        }
        if !found && word != "on" {
            return Err(word.to_owned());
        }
    }
    Ok(())
}

fn matches(function: &Function, word: &str) -> bool {
    word == "off"
        || word.strip_prefix('-').is_some_and(|name| {
            name == function.name()
                || name == function.family().name()
                || function.aliases().contains(&name)
        })
}

/// Why the hooks do not work in this program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallError {
    /// Calls of this function do not reach this crate: another library in the program replaces the
    /// function, too, or the program is linked statically.
    Elsewhere {
        /// The function's name.
        function: &'static str,
        /// The file that has the function which the program calls instead.
        found_in: String,
    },
    /// `GOSCHED_HOOK` has a word that names no function and no family.
    BadSetting {
        /// The word.
        word: String,
    },
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstallError::Elsewhere { function, found_in } => write!(
                f,
                "calls of `{function}` go to {found_in} and not to gosched-hook: link the program dynamically, and \
                 remove other libraries that replace `{function}`"
            ),
            InstallError::BadSetting { word } => write!(
                f,
                "GOSCHED_HOOK has the word {word:?}: use `off`, or a list like `-recv,-sleep` of functions and families"
            ),
        }
    }
}

impl std::error::Error for InstallError {}

/// Checks that calls of every hooked function reach this crate, and that `GOSCHED_HOOK` has no
/// unknown word.
///
/// The hooks work without a call of this function. A program that depends on them calls it at the
/// start of `main`.
///
/// | `GOSCHED_HOOK` | |
/// |---|---|
/// | `off` | all hooks are off |
/// | `-recv,-polling` | these are off: names of functions, or of [families](crate::Family::name) |
/// | `wake-always` | every FUTEX_WAKE enters the kernel: for threads that wait on a futex by a bare system call and are woken by libc's `syscall` |
///
/// An unknown word ends the list: the words after it have no effect.
///
/// # Errors
/// See [`InstallError`].
///
/// ```
/// gosched_hook::install().expect("the hooks work");
/// ```
pub fn install() -> Result<(), InstallError> {
    if let Some(word) = BAD_SETTING.get() {
        return Err(InstallError::BadSetting { word: word.clone() });
    }
    for function in FUNCTIONS {
        for name in std::iter::once(&function.name()).chain(function.aliases()) {
            check(name)?;
        }
    }
    Ok(())
}

fn check(name: &'static str) -> Result<(), InstallError> {
    let text = CString::new(name).unwrap_or_default();
    // SAFETY: a look-up by name.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, text.as_ptr()) };
    let ours = object_of(install as *const c_void);
    let found = object_of(at);
    if !at.is_null() && found == ours {
        return Ok(());
    }
    Err(InstallError::Elsewhere {
        function: name,
        found_in: found.map_or("no shared library".to_owned(), |(_, file)| file),
    })
}

/// The object with this address: where it begins, and its file.
fn object_of(address: *const c_void) -> Option<(usize, String)> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null::<c_char>(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: libc writes the struct, and texts that stay while the object is loaded.
    if unsafe { libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the text has a zero byte (see above).
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((info.dli_fbase as usize, file.to_string_lossy().into_owned()))
}
