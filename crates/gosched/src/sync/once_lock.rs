//! [`OnceLock`]: std's OnceLock for goroutines and plain threads, on top of this crate's [`Once`].
//!
//! std's OnceLock blocks the thread. A wait here frees the thread for other goroutines.

use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

use super::once::{Exclusive, Once};

/// A value that is written once.
///
/// A call that needs the value while another call initialises it waits. The wait blocks the calling
/// goroutine or plain thread. See [`std::sync::OnceLock`].
///
/// ```
/// use gosched::sync::OnceLock;
///
/// static NAME: OnceLock<String> = OnceLock::new();
/// assert!(NAME.get().is_none());
/// assert_eq!(NAME.get_or_init(|| "gosched".to_owned()), "gosched");
/// assert_eq!(NAME.set("another".to_owned()), Err("another".to_owned()));
/// assert_eq!(NAME.get().map(String::as_str), Some("gosched"));
/// ```
pub struct OnceLock<T> {
    once: Once,
    /// `Some` once `once` is complete, and constant from then on.
    value: UnsafeCell<Option<T>>,
}

// SAFETY: U10: `once` lets one thread write the value and all threads read it afterwards (`T:
// Sync`). The value may be dropped on another thread (`T: Send`).
unsafe impl<T: Sync + Send> Sync for OnceLock<T> {}

impl<T: RefUnwindSafe + UnwindSafe> RefUnwindSafe for OnceLock<T> {}
impl<T: UnwindSafe> UnwindSafe for OnceLock<T> {}

impl<T> OnceLock<T> {
    /// Creates an empty cell.
    ///
    /// Never blocks. See the example of [`OnceLock`], and [`std::sync::OnceLock::new`].
    #[inline]
    #[must_use]
    pub const fn new() -> OnceLock<T> {
        OnceLock {
            once: Once::new(),
            value: UnsafeCell::new(None),
        }
    }

    /// Returns the value, or `None` if the cell is empty or being initialised.
    ///
    /// Never blocks. See the example of [`OnceLock`], and [`std::sync::OnceLock::get`].
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if self.once.is_completed() {
            // SAFETY: U10: `once` is complete, so the value is never written again.
            unsafe { &*self.value.get() }.as_ref()
        } else {
            None
        }
    }

    /// Returns a mutable reference to the value, or `None` if the cell is empty.
    ///
    /// Never blocks. See [`std::sync::OnceLock::get_mut`].
    ///
    /// ```
    /// let mut cell = gosched::sync::OnceLock::from(1);
    /// *cell.get_mut().unwrap() += 1;
    /// assert_eq!(cell.get(), Some(&2));
    /// ```
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut().as_mut()
    }

    /// Waits until the cell has a value.
    ///
    /// Blocks the calling goroutine or plain thread. See [`std::sync::OnceLock::wait`].
    ///
    /// ```
    /// # gosched::run(|| {
    /// let cell = gosched::sync::OnceLock::new();
    /// gosched::thread::scope(|s| {
    ///     s.spawn(|| cell.set(7));
    ///     assert_eq!(*cell.wait(), 7);
    /// });
    /// # });
    /// ```
    #[inline]
    pub fn wait(&self) -> &T {
        self.once.wait_force();
        self.value_of_complete()
    }

    /// Writes the value if the cell is empty.
    ///
    /// Blocks the calling goroutine or plain thread while another call initialises the cell. See
    /// the example of [`OnceLock`], and [`std::sync::OnceLock::set`].
    ///
    /// # Errors
    /// If the cell has a value. The error is `value`.
    #[inline]
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        if self.get().is_none() {
            self.initialize(|| value.take());
        }
        value.map_or(Ok(()), Err)
    }

    /// Returns the value, and initialises it with `f` if the cell is empty.
    ///
    /// Blocks the calling goroutine or plain thread while another call initialises the cell. If `f`
    /// panics, the cell stays empty and the next call may initialise it. See the example of
    /// [`OnceLock`], and [`std::sync::OnceLock::get_or_init`].
    #[inline]
    pub fn get_or_init<F>(&self, f: F) -> &T
    where
        F: FnOnce() -> T,
    {
        if let Some(value) = self.get() {
            return value;
        }
        self.initialize(|| Some(f()));
        self.value_of_complete()
    }

    /// Consumes the cell and returns its value.
    ///
    /// Never blocks. See [`std::sync::OnceLock::into_inner`].
    ///
    /// ```
    /// assert_eq!(gosched::sync::OnceLock::from(1).into_inner(), Some(1));
    /// ```
    #[inline]
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Takes the value out and leaves the cell empty.
    ///
    /// Never blocks. See [`std::sync::OnceLock::take`].
    ///
    /// ```
    /// let mut cell = gosched::sync::OnceLock::from(1);
    /// assert_eq!(cell.take(), Some(1));
    /// assert_eq!(cell.set(2), Ok(()));
    /// ```
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        match self.once.state() {
            Exclusive::Complete => {
                self.once = Once::new();
                self.value.get_mut().take()
            }
            _ => None,
        }
    }

    /// Returns when the cell has a value. Calls `make` if it is empty; `make` returns `Some`.
    #[cold]
    fn initialize(&self, make: impl FnOnce() -> Option<T>) {
        self.once.call_once_force(|_| {
            let value = make();
            // SAFETY: U10: `once` runs one closure at a time and none once it is complete. No
            // reader reads before that.
            unsafe { *self.value.get() = value };
        });
    }

    #[inline]
    fn value_of_complete(&self) -> &T {
        debug_assert!(self.once.is_completed());
        // SAFETY: U10: the callers have seen `once` complete, and only `initialize` with a value
        // and `From` complete it.
        unsafe { (*self.value.get()).as_ref().unwrap_unchecked() }
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> OnceLock<T> {
        OnceLock::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_tuple("OnceLock");
        match self.get() {
            Some(value) => d.field(value),
            None => d.field(&format_args!("<uninit>")),
        };
        d.finish()
    }
}

impl<T: Clone> Clone for OnceLock<T> {
    fn clone(&self) -> OnceLock<T> {
        self.get()
            .cloned()
            .map_or_else(OnceLock::new, OnceLock::from)
    }
}

impl<T> From<T> for OnceLock<T> {
    fn from(value: T) -> Self {
        let mut once = Once::new();
        once.set_complete(true);
        OnceLock {
            once,
            value: UnsafeCell::new(Some(value)),
        }
    }
}

impl<T: PartialEq> PartialEq for OnceLock<T> {
    fn eq(&self, other: &OnceLock<T>) -> bool {
        self.get() == other.get()
    }
}

impl<T: Eq> Eq for OnceLock<T> {}
