//! The system's allocator under `OnThread`: it needs no wrapper and works in one.
//!
//! A binary of its own because: its global allocator is `OnThread<System>`.

mod allocator;
mod common;

use std::alloc::System;

use gosched::alloc::OnThread;

#[global_allocator]
static ALLOCATOR: OnThread<System> = OnThread::new(System);

allocator::tests!(None);
