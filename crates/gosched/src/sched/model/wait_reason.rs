//! Why a goroutine waits: one table, from which every list of wait reasons is made.
//!
//! To add a wait reason, add a line to the table. The enum, the text in dumps and in schedtrace,
//! the list in the public documentation and the decisions of the leak analysis follow from that
//! line.

/// What ends a wait, as far as dumps, the check and the leak analysis must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitClass {
    /// The goroutine does not wait.
    Nothing,
    /// A wake-up of which the runtime does not know the sender.
    Event,
    /// The clock: the goroutine has a timer.
    Clock,
    /// The end of one goroutine. The wait's argument is the slot in the packet of that goroutine.
    End,
    /// The end of every goroutine in a scope. The wait's argument is the slot of the scope.
    Scope,
    /// A receive from one channel.
    Receive,
    /// A send to one channel.
    Send,
    /// The first of several channel operations. Dumps show how many there are.
    Select,
    /// Nothing: the wait never ends.
    Never,
    /// A lock or another object of `sync`, by the word that dumps have for it.
    Object(&'static str),
    /// The readiness of an open socket.
    Descriptor,
}

macro_rules! wait_reasons {
    ($($(#[$doc:meta])* $name:ident $text:literal $class:ident $(($word:literal))?;)*) => {
        /// Why a goroutine waits. The table in this file has Go's words where Go has them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub(crate) enum WaitReason {
            $($(#[$doc])* $name,)*
        }

        impl WaitReason {
            /// All of them, in the order of their numbers.
            const ALL: &[WaitReason] = &[$(WaitReason::$name),*];

            /// The text in dumps.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(WaitReason::$name => $text,)*
                }
            }

            /// What ends the wait.
            pub(crate) fn class(self) -> WaitClass {
                match self {
                    $(WaitReason::$name => WaitClass::$class $(($word))?,)*
                }
            }
        }

        /// The texts of the table as a Markdown list, for the public documentation.
        macro_rules! wait_reason_texts {
            () => { concat!($("- `\"", $text, "\"`\n"),*) };
        }
        pub(crate) use wait_reason_texts;
    };
}

wait_reasons! {
    // reason        text in dumps             what ends the wait
    None             "waiting"                 Nothing;
    Park             "park"                    Event;
    Sleep            "sleep"                   Clock;
    Join             "join"                    End;
    Scope            "scope"                   Scope;
    Run              "run"                     Event;
    ChanReceive      "chan receive"            Receive;
    ChanSend         "chan send"               Send;
    Select           "select"                  Select;
    SelectNoCases    "select (no cases)"       Never;
    Mutex            "sync.Mutex.Lock"         Object("mutex");
    RwLockRead       "sync.RwLock.Read"        Object("rwlock");
    RwLockWrite      "sync.RwLock.Write"       Object("rwlock");
    Condvar          "sync.Condvar.Wait"       Object("condvar");
    Once             "sync.Once"               Object("once");
    Barrier          "sync.Barrier.Wait"       Object("barrier");
    WaitGroup        "sync.WaitGroup.Wait"     Object("wait group");
    Semaphore        "sync.Semaphore.Acquire"  Object("semaphore");
    /// A futex of code that knows no goroutines: std's locks and channels, by `gosched-hook`.
    Futex            "std futex"               Object("futex");
    IoRead           "IO wait, read"           Descriptor;
    IoWrite          "IO wait, write"          Descriptor;
    Future           "future"                  Event;
    /// The end of its runtime (`thread::ending`).
    Ending           "the runtime's end"       Event;
}

impl WaitReason {
    /// The reason with this number; `None` if there is none.
    pub(crate) fn from_u8(raw: u8) -> WaitReason {
        let found = WaitReason::ALL.get(usize::from(raw)).copied();
        found.unwrap_or(WaitReason::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_the_number_of_its_reason() {
        for (at, reason) in WaitReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            assert_eq!(WaitReason::from_u8(at as u8), *reason);
        }
        let beyond = WaitReason::ALL.len() as u8;
        assert_eq!(WaitReason::from_u8(beyond), WaitReason::None);
        assert_eq!(WaitReason::from_u8(u8::MAX), WaitReason::None);
    }
}
