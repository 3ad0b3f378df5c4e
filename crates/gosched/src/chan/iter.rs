//! Receiving in a `for` loop.

use std::fmt;
use std::iter::FusedIterator;

use super::Receiver;

/// Receives until the channel is empty, and closed or without senders. Made by [`Receiver::iter`],
/// and by a `for` over a `&Receiver`.
///
/// [`next`](Iterator::next) blocks like [`recv`](Receiver::recv).
///
/// ```
/// # gosched::run(|| {
/// let (s, r) = gosched::chan::bounded(0);
/// gosched::go(move || (1..=3).for_each(|n| s.send(n).unwrap()));
/// let mut sum = 0;
/// for n in &r {
///     sum += n;
/// }
/// assert_eq!(sum, 6);
/// # });
/// ```
pub struct Iter<'a, T> {
    pub(super) receiver: &'a Receiver<T>,
}

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

/// A channel that has ended stays so.
impl<T> FusedIterator for Iter<'_, T> {}

impl<T> fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Iter { .. }")
    }
}

/// Receives what is there now. Made by [`Receiver::try_iter`].
///
/// [`next`](Iterator::next) does not block; it may return a message after it has returned `None`.
///
/// ```
/// let (s, r) = gosched::chan::unbounded();
/// s.send(1).unwrap();
/// s.send(2).unwrap();
/// let mut now = r.try_iter();
/// assert_eq!(now.by_ref().collect::<Vec<_>>(), [1, 2]);
/// s.send(3).unwrap();
/// assert_eq!(now.next(), Some(3));
/// ```
pub struct TryIter<'a, T> {
    pub(super) receiver: &'a Receiver<T>,
}

impl<T> Iterator for TryIter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.try_recv().ok()
    }
}

impl<T> fmt::Debug for TryIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("TryIter { .. }")
    }
}

/// As [`Iter`], owning the receiver. Made by a `for` over a [`Receiver`].
///
/// ```
/// # gosched::run(|| {
/// let (s, r) = gosched::chan::bounded(0);
/// gosched::go(move || (1..=3).for_each(|n| s.send(n).unwrap()));
/// assert_eq!(r.into_iter().sum::<i32>(), 6);
/// # });
/// ```
pub struct IntoIter<T> {
    receiver: Receiver<T>,
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.receiver.recv().ok()
    }
}

/// A channel that has ended stays so.
impl<T> FusedIterator for IntoIter<T> {}

impl<T> fmt::Debug for IntoIter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("IntoIter { .. }")
    }
}

impl<'a, T> IntoIterator for &'a Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter { receiver: self }
    }
}
