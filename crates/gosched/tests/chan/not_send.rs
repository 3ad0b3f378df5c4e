//! Values that are not `Send`. A [`Select`] is `Send` whatever its channels carry, so another
//! thread may run it. No destructor of a value that is not `Send` may run there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use gosched::chan::{Receiver, Select, SelectedOperation, Sender, bounded, unbounded};
use gosched::thread::ThreadId;

use super::*;

/// Where destructors ran.
#[derive(Default)]
struct Drops {
    at_home: AtomicUsize,
    away: AtomicUsize,
}

/// A value of the goroutine or thread that made it. It is not `Send`.
struct Local {
    home: ThreadId,
    drops: Arc<Drops>,
    _count: Rc<()>,
}

impl Local {
    fn new(drops: &Arc<Drops>) -> Local {
        Local {
            home: thread::current().id(),
            drops: Arc::clone(drops),
            _count: Rc::new(()),
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let is_home = thread::current().id() == self.home;
        let drops = match is_home {
            true => &self.drops.at_home,
            false => &self.drops.away,
        };
        drops.fetch_add(1, SeqCst);
        if !is_home {
            // A count that another thread must not touch.
            std::mem::forget(std::mem::replace(&mut self._count, Rc::new(())));
        }
    }
}

/// Drops a chosen operation without completing it.
fn give_up(operation: SelectedOperation<'_>) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(operation)));
    assert!(dropped.is_err(), "it must panic");
}

/// Runs `f` elsewhere: on another goroutine, and on a plain thread. `f` is not asked to be `Send`
/// by more than it must.
fn elsewhere<'a>(on_goroutine: bool, sel: Select<'a>, f: impl FnOnce(Select<'a>) + Send) {
    if on_goroutine {
        thread::scope(|scope| _ = scope.spawn(|| f(sel)));
    } else {
        std::thread::scope(|scope| _ = scope.spawn(|| f(sel)));
    }
}

/// Every flavor that carries values, with a value in it or about to come.
fn with_values(drops: &Arc<Drops>, f: impl Fn(&Sender<Local>, &Receiver<Local>)) {
    for (s, r) in [bounded(1), unbounded()] {
        s.send(Local::new(drops)).unwrap();
        f(&s, &r);
    }
}

fn everywhere(what: &str, f: impl Fn(bool) + Send + Sync) {
    for on_goroutine in [true, false] {
        run(2, what, || f(on_goroutine));
    }
}

#[test]
fn a_value_selected_elsewhere_is_not_dropped_there() {
    everywhere("a receive given up elsewhere", |on_goroutine| {
        let drops = Arc::default();
        with_values(&drops, |_, r| {
            let mut sel = Select::new();
            sel.recv(r);
            elsewhere(on_goroutine, sel, |mut sel| give_up(sel.select()));
        });
        assert_eq!(drops.away.load(SeqCst), 0, "not Send, dropped elsewhere");
    });
}

#[test]
fn a_value_for_a_select_that_waits_elsewhere_is_not_dropped_there() {
    everywhere("a receive that waits elsewhere", |on_goroutine| {
        let drops = Arc::default();
        for (s, r) in [bounded(0), bounded(1), unbounded()] {
            // The select does not borrow the receiver that this goroutine keeps.
            let r: &'static Receiver<Local> = Box::leak(Box::new(r));
            let mut sel = Select::new();
            sel.recv(r);
            let waiting = move |mut sel: Select<'static>| give_up(sel.select());
            let (done, ended) = std::sync::mpsc::channel();
            let run = move || {
                waiting(sel);
                done.send(()).unwrap();
            };
            match on_goroutine {
                true => gosched::go(run),
                false => drop(std::thread::spawn(run)),
            }
            s.send(Local::new(&drops)).unwrap();
            gosched::blocking(|| ended.recv()).unwrap();
        }
        assert_eq!(drops.away.load(SeqCst), 0, "not Send, dropped elsewhere");
    });
}

#[test]
fn a_place_given_up_elsewhere_drops_nothing_there() {
    everywhere("a place given up elsewhere", |on_goroutine| {
        let drops: Arc<Drops> = Arc::default();
        let (s, r) = bounded(2);
        let (chosen, is_chosen) = std::sync::mpsc::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel();
        // The select does not borrow the sender that this goroutine drops.
        let leaked: &'static Sender<Local> = Box::leak(Box::new(s.clone()));
        let mut sel = Select::new();
        sel.send(leaked);
        let give_up_later = move || {
            let operation = sel.select();
            chosen.send(()).unwrap();
            gosched::blocking(|| may_go_on.recv()).unwrap();
            give_up(operation);
            drop(chosen);
        };
        let goroutine = match on_goroutine {
            true => Some(thread::spawn(give_up_later)),
            false => {
                std::thread::spawn(give_up_later);
                None
            }
        };
        gosched::blocking(|| is_chosen.recv()).unwrap();
        s.send(Local::new(&drops)).unwrap(); // behind the place
        drop(r);
        go_on.send(()).unwrap();
        assert!(gosched::blocking(|| is_chosen.recv()).is_err());
        if let Some(goroutine) = goroutine {
            goroutine.join().unwrap();
        }
        assert_eq!(drops.away.load(SeqCst), 0, "not Send, dropped elsewhere");
        assert_eq!(drops.at_home.load(SeqCst), 0, "it is in the channel");
        drop(s);
        // SAFETY: leaked above; the select that borrowed it is gone.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(leaked).cast_mut()) });
        assert_eq!(drops.at_home.load(SeqCst), 1, "it goes with the channel");
    });
}

#[test]
fn a_value_given_up_where_the_case_was_added_is_dropped() {
    run(2, "a receive given up at home", || {
        let drops = Arc::default();
        with_values(&drops, |_, r| {
            let mut sel = Select::new();
            sel.recv(r);
            give_up(sel.select());
        });
        assert_eq!(drops.at_home.load(SeqCst), 2);
        assert_eq!(drops.away.load(SeqCst), 0);
    });
}

/// A clone has its cases from where they were added, and a case is judged by itself.
#[test]
fn a_clone_made_elsewhere_drops_nothing_there() {
    everywhere("a clone", |on_goroutine| {
        let drops = Arc::default();
        with_values(&drops, |_, r| {
            let mut sel = Select::new();
            sel.recv(r);
            elsewhere(on_goroutine, sel, |sel| {
                let (s, own) = bounded::<i32>(1);
                let mut clone = sel.clone();
                clone.recv(&own);
                give_up(clone.select());
                drop((s, own));
            });
        });
        assert_eq!(drops.away.load(SeqCst), 0, "not Send, dropped elsewhere");
    });
}

/// The count of an `Rc` is touched by its own thread alone.
#[test]
fn the_count_of_an_rc_stays() {
    everywhere("an Rc", |on_goroutine| {
        let rc = Rc::new(7);
        let (s, r) = unbounded();
        for _ in 0..100 {
            s.send(Rc::clone(&rc)).unwrap();
        }
        let mut sel = Select::new();
        sel.recv(&r);
        elsewhere(on_goroutine, sel, |mut sel| {
            for _ in 0..50 {
                give_up(sel.select());
            }
        });
        assert_eq!(Rc::strong_count(&rc), 101, "counted down elsewhere");
        drop(r);
        assert_eq!(Rc::strong_count(&rc), 51, "the rest goes with the receiver");
    });
}
