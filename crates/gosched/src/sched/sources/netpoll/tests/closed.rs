//! D2: a driver whose runtime has ended.

use std::os::fd::AsRawFd;

use crate::sched::park::enter;
use crate::sched::sources::netpoll::tests::*;

/// No thread polls a closed driver: a descriptor registered there would never get an event.
#[test]
fn d2_a_closed_driver_takes_no_descriptor() {
    let driver = Driver::new().unwrap();
    driver.close(false);
    let (socket, _other) = Socket::pair();
    let slot = socket.desc.0;
    let rt = enter();
    let queues = slot.queues.lock();
    driver.adopt(slot, socket.stream.as_raw_fd()).unwrap();
    drop(queues);
    drop(rt);
    assert!(slot.home().is_none());
}
