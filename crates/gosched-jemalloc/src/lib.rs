//! Nothing but a test: jemalloc takes more than a minute to build, so it is not among the development dependencies of
//! `gosched` itself, which every one of its test builds would pay for, the one inside its `ui` test too.
