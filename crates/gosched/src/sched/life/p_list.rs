//! Lists of Ps that no M holds: idle, pending, or about to start with the world.
//!
//! A list is the owner of its Ps. It takes and returns `IdleP`s, so a P on a list is in no other
//! place.

use crate::sched::model::ptr::Pp;
use crate::sched::worker::IdleP;

/// A list, last in first out, linked through `P::link`.
#[derive(Default)]
pub(crate) struct PList(Option<Pp>);

impl PList {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn put(&mut self, p: IdleP) {
        p.link.set(self.0);
        self.0 = Some(p.into_p());
    }

    pub(crate) fn take(&mut self) -> Option<IdleP> {
        let p = self.0?;
        self.0 = p.link.take();
        // SAFETY: `put` got the P from its only owner and gave it to this list. Only lists change
        // the links, so the P is on no other list, and it is off this one now.
        Some(unsafe { IdleP::new(p) })
    }

    /// Moves `wanted` to the front, if it is on the list.
    pub(crate) fn raise(&mut self, wanted: Pp) {
        if let Some(before) = self.iter().find(|p| p.link.get() == Some(wanted)) {
            before.link.set(wanted.link.replace(self.0));
            self.0 = Some(wanted);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Pp> + use<> {
        std::iter::successors(self.0, |p| p.link.get())
    }
}
