//! Holds only a test of `gosched` under jemalloc.
//!
//! jemalloc takes more than a minute to build. As a development dependency of `gosched` it would
//! slow down every test build there, also the build inside the `ui` test.
