//! [`OnceLock`]: std's, on top of our [`Once`].

use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

use super::once::{Exclusive, Once};

/// A value that is written once; see [`std::sync::OnceLock`].
///
/// Whoever wants it while somebody makes it waits: the goroutine, or the plain thread, is blocked.
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
    /// Some as soon as `once` is complete, and untouched from then on.
    value: UnsafeCell<Option<T>>,
}

// SAFETY: U10, `once` lets one thread write the value, and everybody read it afterwards; it may be dropped on another one.
unsafe impl<T: Sync + Send> Sync for OnceLock<T> {}

impl<T: RefUnwindSafe + UnwindSafe> RefUnwindSafe for OnceLock<T> {}
impl<T: UnwindSafe> UnwindSafe for OnceLock<T> {}

impl<T> OnceLock<T> {
    /// An empty one; see [`std::sync::OnceLock::new`]. Blocks nothing. See the example of [`OnceLock`].
    #[inline]
    #[must_use]
    pub const fn new() -> OnceLock<T> {
        OnceLock {
            once: Once::new(),
            value: UnsafeCell::new(None),
        }
    }

    /// The value, if it is there; see [`std::sync::OnceLock::get`]. Blocks nothing. See the example of [`OnceLock`].
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if self.once.is_completed() {
            // SAFETY: U10, `once` is complete: the value is there and nobody writes it any more.
            unsafe { &*self.value.get() }.as_ref()
        } else {
            None
        }
    }

    /// The value in place, if it is there; see [`std::sync::OnceLock::get_mut`].
    ///
    /// Blocks nothing.
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

    /// Waits until the value is there; see [`std::sync::OnceLock::wait`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
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

    /// Writes the value, unless there is one or somebody makes one; see [`std::sync::OnceLock::set`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while somebody makes one. See the example of [`OnceLock`].
    ///
    /// # Errors
    /// There was one already; `value` comes back.
    #[inline]
    pub fn set(&self, value: T) -> Result<(), T> {
        let mut value = Some(value);
        if self.get().is_none() {
            self.initialize(|| value.take());
        }
        value.map_or(Ok(()), Err)
    }

    /// The value, made by `f` if there is none yet; see [`std::sync::OnceLock::get_or_init`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while somebody else makes it. If `f` panics, the next one may
    /// try. See the example of [`OnceLock`].
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

    /// What was written, of one that nobody else can reach; see [`std::sync::OnceLock::into_inner`].
    ///
    /// Blocks nothing.
    ///
    /// ```
    /// assert_eq!(gosched::sync::OnceLock::from(1).into_inner(), Some(1));
    /// ```
    #[inline]
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// What was written; it is empty again afterwards. See [`std::sync::OnceLock::take`].
    ///
    /// Blocks nothing.
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

    /// Returns when the value is there. `make` is called if it was not; it returns Some.
    #[cold]
    fn initialize(&self, make: impl FnOnce() -> Option<T>) {
        self.once.call_once_force(|_| {
            let value = make();
            // SAFETY: U10, one closure of `once` runs at a time, and none after it is complete; nobody reads before.
            unsafe { *self.value.get() = value };
        });
    }

    #[inline]
    fn value_of_complete(&self) -> &T {
        debug_assert!(self.once.is_completed());
        // SAFETY: U10, the callers have seen that `once` is complete; what completes it leaves a value.
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
