//! Waiters for a socket against an event that is reported once (G4, F5): no goroutine waits while
//! there is data.
//!
//! [`Socket`] is the kernel's side: received bytes, and whether there is an end. Its events are
//! reported later, on another thread, and once for any number of bytes (edge-triggered). The steps
//! of reading are those of `Desc::read_some`, over the library's count of events. The slot's lock
//! with its queue is a mutex with the notes of the waiters.

use std::collections::VecDeque;
use std::sync::Arc;

use loom::sync::{Arc as Counted, Mutex};
use loom::thread::{self, JoinHandle};

use super::explore;
use crate::changes::Changes;
use crate::note::Note;

struct Socket {
    /// Bytes to be read, and whether nothing follows them.
    kernel: Mutex<(u32, bool)>,
    changes: Changes,
    waiting: Mutex<VecDeque<Counted<Note>>>,
}

impl Socket {
    fn new() -> Arc<Socket> {
        Arc::new(Socket {
            kernel: Mutex::new((0, false)),
            changes: Changes::new(),
            waiting: Mutex::new(VecDeque::new()),
        })
    }

    /// What happens in the kernel, on a thread of its own.
    fn kernel(self: &Arc<Socket>, story: fn(&Socket)) -> JoinHandle<()> {
        let socket = Arc::clone(self);
        thread::spawn(move || story(&socket))
    }

    fn arrive(&self, bytes: u32) {
        self.kernel.lock().unwrap().0 += bytes;
    }

    fn hang_up(&self) {
        self.kernel.lock().unwrap().1 = true;
    }

    /// An event is fetched: `dispatch`.
    fn tell(&self, is_end: bool) {
        let mut waiting = self.waiting.lock().unwrap();
        self.changes.happened(is_end);
        let woken: Vec<_> = match is_end {
            true => waiting.drain(..).collect(),
            false => waiting.pop_front().into_iter().collect(),
        };
        drop(waiting);
        woken.iter().for_each(|note| note.wakeup());
    }

    /// The system call: `None` would block, 0 is the end.
    fn try_read(&self, len: u32) -> Option<u32> {
        let mut kernel = self.kernel.lock().unwrap();
        match kernel.0.min(len) {
            0 if !kernel.1 => None,
            n => {
                kernel.0 -= n;
                Some(n)
            }
        }
    }

    fn read(&self, len: u32) -> u32 {
        let mut has_waited = false;
        loop {
            let seq = self.changes.seq();
            if !self.changes.is_dry(seq)
                && let Some(n) = self.try_read(len)
            {
                if 0 < n && n < len {
                    self.changes.set_dry(seq);
                }
                if has_waited {
                    self.wake_next();
                }
                return n;
            }
            has_waited |= self.wait(seq);
        }
    }

    /// Returns false if an event came after `seq`.
    fn wait(&self, seq: u32) -> bool {
        let note = Counted::new(Note::new());
        let mut waiting = self.waiting.lock().unwrap();
        if self.changes.seq() != seq {
            return false;
        }
        waiting.push_back(Counted::clone(&note));
        drop(waiting);
        note.sleep();
        true
    }

    /// One event may satisfy several waiters: `Desc::finish`.
    fn wake_next(&self) {
        let next = self.waiting.lock().unwrap().pop_front();
        if let Some(note) = next {
            note.wakeup();
        }
    }
}

#[test]
fn f5_a_reader_gets_all_that_comes_however_it_is_told() {
    explore(Some(3), || {
        let socket = Socket::new();
        let kernel = socket.kernel(|socket| {
            socket.arrive(1);
            socket.tell(false);
            socket.arrive(1);
            socket.tell(false);
        });
        let mut got = 0;
        while got < 2 {
            got += socket.read(2);
        }
        assert_eq!(got, 2);
        kernel.join().unwrap();
    });
}

#[test]
fn f5_an_end_is_read_though_the_socket_was_dry() {
    explore(Some(3), || {
        let socket = Socket::new();
        let kernel = socket.kernel(|socket| {
            socket.arrive(1);
            socket.tell(false);
            socket.hang_up();
            socket.tell(true);
        });
        assert_eq!(socket.read(2), 1);
        assert_eq!(socket.read(2), 0);
        assert_eq!(socket.read(2), 0, "an end stays one");
        kernel.join().unwrap();
    });
}

#[test]
fn f5_one_change_is_enough_for_two_who_wait() {
    explore(Some(3), || {
        let socket = Socket::new();
        let readers = [(); 2].map(|()| {
            let socket = Arc::clone(&socket);
            thread::spawn(move || socket.read(1))
        });
        socket.arrive(2);
        socket.tell(false);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), 1);
        }
    });
}
