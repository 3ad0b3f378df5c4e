//! [`LazyLock`]: std's, on top of our [`Once`].

use std::cell::UnsafeCell;
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};

use super::once::{Exclusive, Once};

/// A value that is made when it is first wanted; see [`std::sync::LazyLock`].
///
/// Whoever wants it while it is being made waits: the goroutine, or the plain thread, is blocked.
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

/// `Value` as soon as `once` is complete, and untouched from then on.
enum Data<T, F> {
    Maker(F),
    /// The maker runs, or has panicked.
    Neither,
    Value(T),
}

// SAFETY: U10, `once` lets one thread call the maker and write the value, and everybody read it afterwards; nobody shares the maker.
unsafe impl<T: Sync + Send, F: Send> Sync for LazyLock<T, F> {}

impl<T: RefUnwindSafe + UnwindSafe, F: UnwindSafe> RefUnwindSafe for LazyLock<T, F> {}
impl<T: UnwindSafe, F: UnwindSafe> UnwindSafe for LazyLock<T, F> {}

impl<T, F: FnOnce() -> T> LazyLock<T, F> {
    /// One whose value `f` will make; see [`std::sync::LazyLock::new`]. Blocks nothing. See the example of [`LazyLock`].
    #[inline]
    pub const fn new(f: F) -> LazyLock<T, F> {
        LazyLock {
            once: Once::new(),
            data: UnsafeCell::new(Data::Maker(f)),
        }
    }

    /// The value in place, made now if it was not; see [`std::sync::LazyLock::force_mut`].
    ///
    /// Blocks nothing but what the maker blocks: nobody else can be at it.
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
                // As long as it is not there, a panic has come between.
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

    /// The value, made now if it was not; see [`std::sync::LazyLock::force`].
    ///
    /// Blocks the goroutine, or the plain thread it is called on, while somebody else makes it.
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
            // SAFETY: U10, one closure of `once` runs at a time, and none after it is complete; nobody reads before.
            let data = unsafe { mem::replace(&mut *this.data.get(), Data::Neither) };
            let Data::Maker(make) = data else {
                unreachable!("LazyLock: incomplete without a maker")
            };
            let value = make();
            // SAFETY: U10, as above.
            unsafe { *this.data.get() = Data::Value(value) };
        });
        match LazyLock::get(this) {
            Some(value) => value,
            None => unreachable!("LazyLock: complete without a value"),
        }
    }
}

impl<T, F> LazyLock<T, F> {
    /// The value in place, if it has been made; see [`std::sync::LazyLock::get_mut`].
    ///
    /// Blocks nothing.
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

    /// The value, if it has been made; see [`std::sync::LazyLock::get`]. Blocks nothing.
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
        // SAFETY: U10, `once` is complete: nobody writes any more.
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
