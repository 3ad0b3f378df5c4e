//! A growable array that never uses malloc.
//!
//! The scheduler's own tables grow while a parked goroutine may hold malloc's lock (D9), so they
//! use pages of their own. Growth doubles the mapping, in place or moved by the kernel's page
//! tables, without copying. A failure is an error and leaves the array as it was.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::slice;

use crate::sys::linux::mem::{map_pages, page_size, remap, round_up_page, unmap};
use crate::sys::linux::syscall::Errno;

/// Half of the user address space. A larger request fails without a system call.
const BYTES_MAX: usize = 1 << 46;

/// An array of plain values in pages of its own; CONTEXT: any.
pub(crate) struct PageVec<T: Copy> {
    /// The first element; dangling while `bytes` is 0.
    start: NonNull<T>,
    /// Elements in use.
    len: usize,
    /// Bytes mapped, whole pages.
    bytes: usize,
    owned: PhantomData<T>,
}

// SAFETY: a PageVec owns its pages as a Vec does, so it may move to another thread if its elements
// may (D9).
unsafe impl<T: Copy + Send> Send for PageVec<T> {}
// SAFETY: through `&self` elements are only read.
unsafe impl<T: Copy + Sync> Sync for PageVec<T> {}

impl<T: Copy> PageVec<T> {
    /// The mapping is page-aligned and elements must have a size; checked when `T` is chosen.
    const ELEMENT_FITS: () = assert!(size_of::<T>() > 0 && align_of::<T>() <= page_size());

    /// An empty array, without pages.
    pub(crate) const fn new() -> Self {
        let () = Self::ELEMENT_FITS;
        PageVec {
            start: NonNull::dangling(),
            len: 0,
            bytes: 0,
            owned: PhantomData,
        }
    }

    /// The number of elements.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// True when there is no element.
    #[cfg(test)]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many elements fit before the next growth.
    pub(crate) const fn capacity(&self) -> usize {
        self.bytes / size_of::<T>()
    }

    /// Makes room for `n` more elements.
    pub(crate) fn reserve(&mut self, n: usize) -> Result<(), Errno> {
        let need = self.len.checked_add(n).ok_or(Errno(libc::ENOMEM))?;
        if need <= self.capacity() {
            return Ok(());
        }
        self.grow(need)
    }

    /// Appends an element.
    pub(crate) fn push(&mut self, value: T) -> Result<(), Errno> {
        self.reserve(1)?;
        // SAFETY: `reserve` made room for one more, so the slot is in the mapping and aligned.
        // Writing a Copy value drops nothing.
        unsafe { self.start.add(self.len).write(value) };
        self.len += 1;
        Ok(())
    }

    /// Removes the last element.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.as_slice().last().copied();
        self.len -= usize::from(last.is_some());
        last
    }

    /// Inserts an element at `index`; the later ones move up.
    ///
    /// # Panics
    /// If there are fewer than `index` elements.
    pub(crate) fn insert(&mut self, index: usize, value: T) -> Result<(), Errno> {
        self.push(value)?;
        self.as_mut_slice()[index..].rotate_right(1);
        Ok(())
    }

    /// Removes the element at `index`; the later ones move down.
    ///
    /// # Panics
    /// If there is no element at `index`.
    pub(crate) fn remove(&mut self, index: usize) -> T {
        let elements = self.as_mut_slice();
        let removed = elements[index];
        elements.copy_within(index + 1.., index);
        self.len -= 1;
        removed
    }

    /// The element at `index`, if there is one.
    #[cfg(test)]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.as_slice().get(index)
    }

    /// The element at `index` for changing, if there is one.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.as_mut_slice().get_mut(index)
    }

    /// All elements.
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` slots are written, aligned and owned by `self`. Without pages
        // `len` is 0 and the dangling pointer is aligned.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All elements for changing.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: the first `len` slots are written, aligned and owned by `self`; `&mut self` makes
        // this the only access.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Removes all elements and keeps the pages.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Enlarges the mapping for at least `need` elements, and at least doubles it.
    #[cold]
    fn grow(&mut self, need: usize) -> Result<(), Errno> {
        let bytes = need
            .checked_mul(size_of::<T>())
            .and_then(|bytes| round_up_page(bytes.max(self.bytes.saturating_mul(2))))
            .filter(|&bytes| bytes <= BYTES_MAX)
            .ok_or(Errno(libc::ENOMEM))?;
        let start = if self.bytes == 0 {
            map_pages(bytes)?
        } else {
            // SAFETY: `start` and `bytes` are the whole mapping of this array. `&mut self` means
            // that no reference into it is alive, and `start` is replaced below.
            unsafe { remap(self.start.as_ptr().cast(), self.bytes, bytes)? }
        };
        self.start = start.cast();
        self.bytes = bytes;
        Ok(())
    }
}

impl<T: Copy> Drop for PageVec<T> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: `start` and `bytes` are the whole mapping of this array, and this drop is its
            // last use.
            unsafe { unmap(self.start.as_ptr().cast(), self.bytes) };
        }
    }
}

impl<T: Copy + fmt::Debug> fmt::Debug for PageVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static EMPTY: PageVec<u64> = PageVec::new();

    #[test]
    fn starts_empty_without_pages() {
        assert_eq!((EMPTY.len(), EMPTY.capacity()), (0, 0));
        assert!(EMPTY.is_empty() && EMPTY.as_slice().is_empty());
        assert_eq!(EMPTY.get(0), None);
        assert_eq!(PageVec::<u64>::new().pop(), None);
    }

    #[test]
    fn keeps_its_elements_while_it_grows_and_moves() {
        let mut numbers = PageVec::new();
        // A mapping in between makes the kernel move the array.
        let mut others = PageVec::new();
        for n in 0..200_000u64 {
            numbers.push(n).expect("room");
            others.push(n as u8).expect("room");
        }
        assert_eq!(numbers.len(), 200_000);
        assert!(numbers.as_slice().iter().copied().eq(0..200_000));
        assert!((0..200_000u64).rev().all(|n| numbers.pop() == Some(n)));
        assert_eq!(numbers.pop(), None);
    }

    #[test]
    fn behaves_as_a_vec() {
        let (mut ours, mut model) = (PageVec::new(), Vec::new());
        let mut seed = 0x9e37_79b9_u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = [seed >> 33, seed, seed >> 7];
            match (seed >> 60, model.len()) {
                (0, _) => assert_eq!(ours.pop(), model.pop()),
                (1, n @ 1..) => {
                    let index = (seed >> 20) as usize % n;
                    assert_eq!(ours.remove(index), model.remove(index));
                }
                (3, n) => {
                    let index = (seed >> 20) as usize % (n + 1);
                    ours.insert(index, value).expect("room");
                    model.insert(index, value);
                }
                (2, n @ 1..) => {
                    let index = (seed >> 20) as usize % n;
                    *ours.get_mut(index).expect("in range") = value;
                    model[index] = value;
                }
                _ => {
                    ours.push(value).expect("room");
                    model.push(value);
                }
            }
            assert_eq!(ours.as_slice().last(), model.last());
        }
        assert_eq!(ours.as_slice(), model.as_slice());
        ours.clear();
        assert!(ours.is_empty() && ours.capacity() > 0);
    }

    #[test]
    fn reserve_is_enough_and_absurd_sizes_are_errors() {
        let mut array = PageVec::<u32>::new();
        array.reserve(10_000).expect("room");
        let capacity = array.capacity();
        assert!(capacity >= 10_000);
        for n in 0..10_000 {
            array.push(n).expect("reserved");
        }
        assert_eq!(array.capacity(), capacity);
        assert_eq!(array.reserve(usize::MAX), Err(Errno(libc::ENOMEM)));
        assert_eq!(array.reserve(1 << 60), Err(Errno(libc::ENOMEM)));
        assert_eq!(array.get(9_999), Some(&9_999));
    }

    #[test]
    #[should_panic(expected = "out of bounds")]
    fn remove_past_the_end_panics() {
        let mut array = PageVec::new();
        array.push(1u8).expect("room");
        array.remove(1);
    }
}
