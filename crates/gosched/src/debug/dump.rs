//! dump
/// Dump
#[derive(Debug)]
pub struct Dump;
impl std::fmt::Display for Dump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dump")
    }
}
impl Dump {
    /// gs
    pub fn goroutines(&self) {}
}
pub(crate) fn dump_of(_: &crate::sched::Sched) -> Dump {
    Dump
}
pub(crate) fn print_fatal() {}
