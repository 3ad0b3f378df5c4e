//! The buffers of channels by themselves: the ring and the list, without the lock and the queues
//! around them (U10).
//!
//! The files are compiled a second time, next to the models that use their internals. A message is
//! an index into [`Items`], whose field only the receiver may touch, and only if it is ordered
//! after the sender.

#[path = "../../../../gosched/src/chan/list.rs"]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "what a channel asks of it besides; its own copy is private"
)]
mod list;
#[path = "../../../../gosched/src/chan/ring.rs"]
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "what a channel asks of it besides; its own copy is private"
)]
mod ring;

mod lists;
mod rings;
