//! [`LazyLock`]: std's LazyLock for goroutines and plain threads, on top of this crate's [`Once`].
//!
//! std's LazyLock blocks the thread. A wait here frees the thread for other goroutines.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};

use super::once::{Exclusive, Once};

/// A value that is initialised on first access.
///
/// An access while another access initialises the value waits. The wait blocks the calling
/// goroutine or plain thread. See [`std::sync::LazyLock`].
///
/// ```
/// use gosched::sync::LazyLock;
///
/// static SQUARES: LazyLock<Vec<u32>> = LazyLock::new(|| (0..10).map(|n| n * n).collect());
/// assert_eq!(SQUARES[3], 9);
/// ```
pub struct LazyLock<T, F = fn() -> T> {
    once: Once,
    data: UnsafeCell<Data<T, F>>,
}

/// `Value` once `once` is complete, and constant from then on.
enum Data<T, F> {
    Maker(F),
    /// The maker runs or has panicked.
    Neither,
    Value(T),
}

// SAFETY: U10: `once` lets one thread call the maker and write the value (`T: Send`, `F: Send`),
// and all threads read the value afterwards (`T: Sync`). The maker is never shared.
unsafe impl<T: Sync + Send, F: Send> Sync for LazyLock<T, F> {}

impl<T: RefUnwindSafe + UnwindSafe, F: UnwindSafe> RefUnwindSafe for LazyLock<T, F> {}
impl<T: UnwindSafe, F: UnwindSafe> UnwindSafe for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    /// Creates a value that `f` initialises on first access.
    ///
    /// Never blocks. See the example of [`LazyLock`], and [`std::sync::LazyLock::new`].
    #[inline]
    pub const fn new(f: F) -> LazyLock<T, F> {
        LazyLock {
            once: Once::new(),
            data: UnsafeCell::new(Data::Maker(f)),
        }
    }

    /// Returns a mutable reference to the value, and initialises it if needed.
    ///
    /// Waits for no other caller, because the lock is borrowed mutably. See
    /// [`std::sync::LazyLock::force_mut`].
    ///
    /// # Panics
    /// If the maker panics, or has panicked before.
    ///
    /// ```
    /// let mut lazy = gosched::sync::LazyLock::new(|| 1);
    /// *gosched::sync::LazyLock::force_mut(&mut lazy) += 1;
    /// assert_eq!(*lazy, 2);
    /// ```
    #[inline]
    pub fn force_mut(this: &mut LazyLock<T, F>) -> &mut T {
        match this.once.state() {
            Exclusive::Complete => {}
            Exclusive::Poisoned => poisoned(),
            Exclusive::Incomplete => {
                let Data::Maker(make) = mem::replace(this.data.get_mut(), Data::Neither) else {
                    unreachable!("LazyLock: incomplete without a maker")
                };
                // POISONED until the value exists, in case the maker panics.
                this.once.set_complete(false);
                *this.data.get_mut() = Data::Value(make());
                this.once.set_complete(true);
            }
        }
        match this.data.get_mut() {
            Data::Value(value) => value,
            _ => unreachable!("LazyLock: complete without a value"),
        }
    }

    /// Returns the value, and initialises it if needed.
    ///
    /// Blocks the calling goroutine or plain thread while another access initialises it. See
    /// [`std::sync::LazyLock::force`].
    ///
    /// # Panics
    /// If the maker panics, or has panicked before.
    ///
    /// ```
    /// let lazy = gosched::sync::LazyLock::new(|| 92);
    /// assert_eq!(gosched::sync::LazyLock::force(&lazy), &92);
    /// assert_eq!(&*lazy, &92);
    /// ```
    #[inline]
    pub fn force(this: &LazyLock<T, F>) -> &T {
        this.once.call_once_force(|state| {
            if state.is_poisoned() {
                poisoned();
            }
            // SAFETY: U10: `once` runs one closure at a time and none once it is complete. No
            // reader reads before that.
            let data = unsafe { mem::replace(&mut *this.data.get(), Data::Neither) };
            let Data::Maker(make) = data else {
                unreachable!("LazyLock: incomplete without a maker")
            };
            let value = make();
            // SAFETY: U10: the closure of `once` still runs, so this is the only access to the
            // data.
            unsafe { *this.data.get() = Data::Value(value) };
        });
        match LazyLock::get(this) {
            Some(value) => value,
            None => unreachable!("LazyLock: complete without a value"),
        }
    }
}

impl<T, F> LazyLock<T, F> {
    /// Returns a mutable reference to the value, or `None` before its initialisation.
    ///
    /// Never blocks. See [`std::sync::LazyLock::get_mut`].
    ///
    /// ```
    /// let mut lazy = gosched::sync::LazyLock::new(|| 92);
    /// assert_eq!(gosched::sync::LazyLock::get_mut(&mut lazy), None);
    /// let _ = gosched::sync::LazyLock::force(&lazy);
    /// assert_eq!(gosched::sync::LazyLock::get_mut(&mut lazy), Some(&mut 92));
    /// ```
    #[inline]
    pub fn get_mut(this: &mut LazyLock<T, F>) -> Option<&mut T> {
        match this.data.get_mut() {
            Data::Value(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the value, or `None` before its initialisation.
    ///
    /// Never blocks. See [`std::sync::LazyLock::get`].
    ///
    /// ```
    /// let lazy = gosched::sync::LazyLock::new(|| 92);
    /// assert_eq!(gosched::sync::LazyLock::get(&lazy), None);
    /// let _ = gosched::sync::LazyLock::force(&lazy);
    /// assert_eq!(gosched::sync::LazyLock::get(&lazy), Some(&92));
    /// ```
    #[inline]
    pub fn get(this: &LazyLock<T, F>) -> Option<&T> {
        if !this.once.is_completed() {
            return None;
        }
        // SAFETY: U10: `once` is complete, so the data is never written again.
        match unsafe { &*this.data.get() } {
            Data::Value(value) => Some(value),
            _ => None,
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn poisoned() -> ! {
    panic!("LazyLock instance has previously been poisoned")
}

impl<T, F: FnOnce() -> T> Deref for LazyLock<T, F> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        LazyLock::force(self)
    }
}

impl<T, F: FnOnce() -> T> DerefMut for LazyLock<T, F> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        LazyLock::force_mut(self)
    }
}

impl<T: Default> Default for LazyLock<T> {
    fn default() -> LazyLock<T> {
        LazyLock::new(T::default)
    }
}

impl<T: fmt::Debug, F> fmt::Debug for LazyLock<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut d = f.debug_tuple("LazyLock");
        match LazyLock::get(self) {
            Some(value) => d.field(value),
            None => d.field(&format_args!("<uninit>")),
        };
        d.finish()
    }
}
