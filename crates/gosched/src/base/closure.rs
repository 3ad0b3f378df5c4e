//! Closures whose type the calling code does not know.
//!
//! A [`Room`] keeps a closure in a few words of an object that outlives many closures (D3); a
//! [`Stored`] owns the closure in a room. [`call_once`] lets assembly call a closure.

use std::borrow::Borrow;
use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};

/// The largest closure that a [`Room`] keeps without a box, in words.
pub(crate) const WORDS: usize = 5;

/// Room for one closure. All bytes are valid, so zeroed memory is a room.
#[repr(transparent)]
pub(crate) struct Room(UnsafeCell<[MaybeUninit<u64>; WORDS]>);

// SAFETY: no safe function uses the words: a thread that does has promised that they are its own.
unsafe impl Sync for Room {}

/// A closure on its way into a [`Room`]. A large one is boxed beforehand, so storing it cannot fail
/// and needs no allocator (D9).
pub(crate) struct Fitting<F>(Closure<F>);

enum Closure<F> {
    Inline(F),
    Boxed(Box<F>),
}

impl<F: FnOnce()> Fitting<F> {
    const IS_SMALL: bool = size_of::<F>() <= WORDS * 8 && align_of::<F>() <= align_of::<Room>();

    /// In user context, because it may allocate.
    #[inline]
    pub(crate) fn new(f: F) -> Fitting<F> {
        Fitting(if Self::IS_SMALL {
            Closure::Inline(f)
        } else {
            Closure::Boxed(Box::new(f))
        })
    }
}

/// What can be done with a closure of one type.
pub(crate) struct Table {
    run: Step,
    drop: Step,
}

/// # Safety
/// A closure of the table's type lies at the address, and no code uses it again.
type Step = unsafe fn(*mut u8);

impl Table {
    #[inline]
    fn of<F: FnOnce()>() -> &'static Table {
        unsafe fn finish<F: FnOnce(), const RUN: bool>(at: *mut u8) {
            // SAFETY: a closure of this type lies there, and this is its only use (`Step`).
            let f = unsafe { at.cast::<F>().read() };
            if RUN {
                f();
            }
        }
        const {
            &Table {
                run: finish::<F, true>,
                drop: finish::<F, false>,
            }
        }
    }
}

impl Room {
    /// Stores a closure; returns its table. The room does not drop what was in it before.
    ///
    /// # Safety
    /// No other code uses the room meanwhile.
    #[inline]
    pub(crate) unsafe fn put<F: FnOnce()>(&self, f: Fitting<F>) -> &'static Table {
        // SAFETY: no other code uses the room (see "Safety").
        let words = unsafe { &mut *self.0.get() };
        match f.0 {
            Closure::Inline(f) => write(words, f),
            Closure::Boxed(f) => write(words, move || {
                // The box is freed before the closure runs: the closure's last step ends the
                // goroutine's thread-locals, and an allocator may have some.
                let f = { *{ f } };
                f();
            }),
        }
    }
}

#[inline]
fn write<F: FnOnce()>(words: &mut [MaybeUninit<u64>; WORDS], f: F) -> &'static Table {
    assert!(Fitting::<F>::IS_SMALL);
    // SAFETY: the words are large enough and aligned for an F, as the line above checks.
    unsafe { words.as_mut_ptr().cast::<F>().write(f) };
    Table::of::<F>()
}

/// Owns the closure in a room: it is run once, or dropped with this value. `R` is the room or a
/// reference to it.
pub(crate) struct Stored<R: Borrow<Room>> {
    table: &'static Table,
    room: R,
}

impl<R: Borrow<Room>> Stored<R> {
    /// # Safety
    /// [`Room::put`] of this room returned `table`, and no other code has used the room since or
    /// uses it before the closure begins to run or is dropped. Any thread may run or drop the
    /// closure, and what it borrows is alive until then.
    #[inline]
    pub(crate) unsafe fn new(table: &'static Table, room: R) -> Stored<R> {
        Stored { table, room }
    }

    /// Moves the closure out of the room and runs it.
    #[inline]
    pub(crate) fn run(self) {
        let this = ManuallyDrop::new(self);
        this.finish(this.table.run);
    }

    #[inline]
    fn finish(&self, step: Step) {
        // SAFETY: `new`: the room holds a closure of the table's type. This is its only use: `run`
        // consumes the value and prevents its drop.
        unsafe { step(self.room.borrow().0.get().cast()) };
    }
}

impl Stored<&Room> {
    /// Moves the closure to a room of its own.
    pub(crate) fn move_out(self) -> Stored<Room> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `new`: the room is this value's, and the closure in it is not used again.
        let words = unsafe { *this.room.0.get() };
        Stored {
            table: this.table,
            room: Room(UnsafeCell::new(words)),
        }
    }
}

impl<R: Borrow<Room>> Drop for Stored<R> {
    #[inline]
    fn drop(&mut self) {
        self.finish(self.table.drop);
    }
}

/// A function for assembly to call.
pub(crate) type Callback = unsafe extern "C" fn(*mut u8);

/// Calls `f` by way of `call`, which passes its second argument to its first one before it returns.
/// `f` must not unwind: that ends the process.
pub(crate) fn call_once<F: FnOnce() -> R, R>(f: F, call: impl FnOnce(Callback, *mut u8)) -> R {
    struct Call<F, R> {
        f: Option<F>,
        out: Option<R>,
    }
    unsafe extern "C" fn callback<F: FnOnce() -> R, R>(data: *mut u8) {
        // SAFETY: `data` is the `Call` below, which lives until the call returns and which no other
        // code uses meanwhile.
        let call = unsafe { &mut *data.cast::<Call<F, R>>() };
        call.out = call.f.take().map(|f| f());
    }
    let mut data = Call {
        f: Some(f),
        out: None,
    };
    call(callback::<F, R>, (&raw mut data).cast());
    match data.out {
        Some(out) => out,
        None => unreachable!("the call has returned"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    fn empty() -> Room {
        Room(UnsafeCell::new([MaybeUninit::uninit(); WORDS]))
    }

    /// Stores a closure that owns `held`, of `EXTRA` words besides, and adds these words to `sum`.
    fn put<const EXTRA: usize>(room: &Room, held: &Rc<()>, sum: &Rc<Cell<u64>>) -> &'static Table {
        let (held, sum) = (held.clone(), sum.clone());
        let words: [u64; EXTRA] = std::array::from_fn(|i| i as u64 + 1);
        let f = Fitting::new(move || {
            sum.set(sum.get() + words.iter().sum::<u64>());
            drop(held);
        });
        assert_eq!(matches!(f.0, Closure::Inline(_)), EXTRA + 2 <= WORDS);
        // SAFETY: the room is this test's alone.
        unsafe { room.put(f) }
    }

    fn use_in_three_ways<const EXTRA: usize>() {
        let (room, held, sum) = (empty(), Rc::new(()), Rc::new(Cell::new(0)));
        let all = (EXTRA * (EXTRA + 1) / 2) as u64;
        // SAFETY: the closure is put into the room just before, and this thread uses it.
        let stored = || unsafe { Stored::new(put::<EXTRA>(&room, &held, &sum), &room) };
        stored().run();
        assert_eq!((sum.get(), Rc::strong_count(&held)), (all, 1));
        drop(stored());
        assert_eq!((sum.get(), Rc::strong_count(&held)), (all, 1));
        let moved = stored().move_out();
        let other = stored();
        assert_eq!(Rc::strong_count(&held), 3);
        drop(moved);
        other.move_out().run();
        assert_eq!((sum.get(), Rc::strong_count(&held)), (2 * all, 1));
    }

    #[test]
    fn u1_a_stored_closure_runs_or_is_dropped_once() {
        use_in_three_ways::<0>();
        use_in_three_ways::<3>();
        use_in_three_ways::<4>();
        use_in_three_ways::<100>();
    }

    #[test]
    fn a_callback_runs_its_closure() {
        let (name, mut seen) = (String::from("name"), 0);
        let call = |f: Callback, data| {
            // SAFETY: `call_once` passes both together.
            unsafe { f(data) };
        };
        let got = call_once(
            || {
                seen += 1;
                name
            },
            call,
        );
        assert_eq!((got.as_str(), seen), ("name", 1));
    }
}
