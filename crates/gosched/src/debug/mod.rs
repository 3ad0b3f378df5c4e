//! What the runtime is doing (placeholder while it is being written).
pub(crate) mod dump;
pub(crate) mod schedtrace;
pub(crate) mod sigquit;
