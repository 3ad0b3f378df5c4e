//! Name lookup: turns a value that stands for addresses into the addresses.
//!
//! libc resolves names, and blocks its thread meanwhile. So a lookup runs in a marked call. Each
//! runtime limits how many run at the same time (`Builder::max_lookups`). Further goroutines wait
//! in a semaphore, in order, and hold no thread. A literal address, as a value or as text, needs
//! neither.
//!
//! A lookup always ends, at the latest by libc's timeouts. The scheduler relies on that at its
//! limit of threads: a running lookup is a thread that becomes free again (`watch_room`). So
//! lookups alone never exhaust the threads. A lookup that waits for a thread does not exhaust them
//! either. It waits as long as the calls take that hold the threads.

use std::any::TypeId;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use crate::sched::model::current::current_g;

/// Returns the addresses that `addr` stands for. Parks the goroutine during a name lookup.
pub(super) fn look_up<A: ToSocketAddrs>(addr: A) -> io::Result<Found<A::Iter>> {
    if is_address::<A>() {
        return addr.to_socket_addrs().map(Found::All);
    }
    let text = text_of(&addr);
    if let Some(addr) = text.and_then(Text::literal) {
        return Ok(Found::One(Some(addr)));
    }
    let look_up = || addr.to_socket_addrs();
    let found = match current_g() {
        Some(g) => g.sched().lookups.run(look_up),
        None => look_up(),
    }?;
    Ok(match text {
        Some(_) => Found::Named(found),
        None => Found::All(found),
    })
}

/// Calls `f` with each address until it succeeds. Otherwise returns the last error, as std does.
pub(super) fn with_each<A: ToSocketAddrs, T>(
    addr: A,
    f: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    each(look_up(addr)?, f)
}

/// As [`with_each`], for the result of a lookup.
pub(super) fn each<T>(
    addrs: impl Iterator<Item = SocketAddr>,
    mut f: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for addr in addrs {
        match f(addr) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(no_addresses))
}

/// The error of a connection to no address at all, with std's text.
pub(super) fn no_addresses() -> io::Error {
    let text = "could not resolve to any addresses";
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// The result of a lookup.
pub(super) enum Found<I> {
    /// A literal address.
    One(Option<SocketAddr>),
    /// Addresses in an order of the program: a list, or what a type of the program returns.
    All(I),
    /// The addresses of a name.
    Named(I),
}

impl<I: Iterator<Item = SocketAddr>> Iterator for Found<I> {
    type Item = SocketAddr;

    #[inline]
    fn next(&mut self) -> Option<SocketAddr> {
        match self {
            Found::One(addr) => addr.take(),
            Found::All(addrs) | Found::Named(addrs) => addrs.next(),
        }
    }
}

/// Whether `A` is one of std's address types, or a reference to one. Any other type may look up a
/// name.
#[inline]
pub(super) fn is_address<A>() -> bool {
    is_or_refers_to::<A, SocketAddr>()
        || is_or_refers_to::<A, SocketAddrV4>()
        || is_or_refers_to::<A, SocketAddrV6>()
        || is_or_refers_to::<A, (IpAddr, u16)>()
        || is_or_refers_to::<A, (Ipv4Addr, u16)>()
        || is_or_refers_to::<A, (Ipv6Addr, u16)>()
        || is_or_refers_to::<A, &[SocketAddr]>()
}

#[inline]
fn is_or_refers_to<A, T>() -> bool {
    let id = id_of::<A>();
    id == id_of::<T>() || id == id_of::<&T>() || id == id_of::<&&T>()
}

/// The text in one of std's types for names.
#[derive(Clone, Copy)]
pub(super) enum Text<'a> {
    /// An address and a port, or a name and a port.
    Whole(&'a str),
    Pair(&'a str, u16),
}

impl Text<'_> {
    /// Parses a literal address.
    pub(super) fn literal(self) -> Option<SocketAddr> {
        match self {
            Text::Whole(text) => text.parse().ok(),
            Text::Pair(host, port) => Some(SocketAddr::new(host.parse().ok()?, port)),
        }
    }

    /// Returns a lookup of the text that borrows nothing.
    pub(super) fn to_lookup(self) -> impl FnOnce() -> io::Result<Vec<SocketAddr>> + use<> {
        let (host, port) = match self {
            Text::Whole(text) => (text.to_owned(), None),
            Text::Pair(host, port) => (host.to_owned(), Some(port)),
        };
        move || {
            let found = match port {
                None => host.to_socket_addrs(),
                Some(port) => (host.as_str(), port).to_socket_addrs(),
            };
            found.map(Iterator::collect)
        }
    }
}

/// Returns the text of a value of one of std's types for names, or of a reference to one.
pub(super) fn text_of<'a, A>(addr: &'a A) -> Option<Text<'a>> {
    // SAFETY: all types in the calls of `view` are covariant, and their lifetimes are that of the
    // borrow.
    let text: Option<&'a str> = unsafe {
        None.or_else(|| view::<A, &'a str>(addr).copied())
            .or_else(|| view::<A, &'a &'a str>(addr).copied().copied())
            .or_else(|| view::<A, String>(addr).map(String::as_str))
            .or_else(|| view::<A, &'a String>(addr).map(|text| text.as_str()))
    };
    if let Some(text) = text {
        return Some(Text::Whole(text));
    }
    // SAFETY: all types in the calls of `view` are covariant, and their lifetimes are that of the
    // borrow.
    let (host, port): (&'a str, u16) = unsafe {
        None.or_else(|| view::<A, (&'a str, u16)>(addr).copied())
            .or_else(|| view::<A, &'a (&'a str, u16)>(addr).copied().copied())
            .or_else(|| view::<A, (String, u16)>(addr).map(|(host, port)| (host.as_str(), *port)))
            .or_else(|| view::<A, &'a (String, u16)>(addr).map(|at| (at.0.as_str(), at.1)))
    }?;
    Some(Text::Pair(host, port))
}

/// Returns the value as a `T`, if both types are equal except for lifetimes.
///
/// # Safety
/// `T` is covariant, and its lifetimes are not longer than `'a`.
#[inline]
unsafe fn view<'a, A, T: 'a>(value: &'a A) -> Option<&'a T> {
    if id_of::<A>() != id_of::<T>() {
        return None;
    }
    // SAFETY: the types are equal except for lifetimes, so they have the same layout. The lifetimes
    // in `A` are at least `'a`, because `value` is borrowed for `'a`. The caller guarantees that
    // the lifetimes in `T` are not longer.
    Some(unsafe { &*(&raw const *value).cast::<T>() })
}

/// The identity of a type, ignoring its lifetimes.
#[inline]
fn id_of<T>() -> TypeId {
    trait Identity {
        fn id(&self) -> TypeId
        where
            Self: 'static;
    }

    impl<T> Identity for PhantomData<T> {
        #[inline]
        fn id(&self) -> TypeId
        where
            Self: 'static,
        {
            TypeId::of::<T>()
        }
    }

    let identity: &dyn Identity = &PhantomData::<T>;
    // SAFETY: only the lifetime bound changes. `PhantomData` has no contents, and `id` reads none:
    // a `TypeId` identifies the type with erased lifetimes.
    let identity = unsafe { mem::transmute::<&dyn Identity, &(dyn Identity + 'static)>(identity) };
    identity.id()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text<A>(addr: &A) -> Option<SocketAddr> {
        text_of(addr).and_then(Text::literal)
    }

    fn is_literal<A: ToSocketAddrs>(addr: A) -> bool {
        is_address::<A>() || parse_text(&addr).is_some()
    }

    #[test]
    #[allow(clippy::needless_borrows_for_generic_args)] // references are distinct types here
    fn addresses_are_told_from_names() {
        let (v4, v6) = (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let addr = SocketAddr::from((v4, 80));
        assert!(is_literal(addr) && is_literal(&addr) && is_literal(&&addr));
        assert!(is_literal(SocketAddrV4::new(v4, 80)));
        assert!(is_literal(SocketAddrV6::new(v6, 80, 0, 0)));
        assert!(is_literal((v4, 80)) && is_literal((v6, 80)) && is_literal((IpAddr::V4(v4), 80)));
        assert!(is_literal(&[addr, addr][..]));
        for text in ["127.0.0.1:80", "[::1]:80", "[fe80::1%3]:80"] {
            let owned = text.to_owned();
            assert!(is_literal(text) && is_literal(&text) && is_literal(&owned));
            assert_eq!(parse_text(&text), Some(text.parse().unwrap()));
            assert!(is_literal(owned));
        }
        for host in ["127.0.0.1", "::1"] {
            let owned = (host.to_owned(), 80);
            assert!(is_literal((host, 80)) && is_literal(&(host, 80)) && is_literal(&owned));
            assert!(is_literal(owned));
        }
        for name in ["localhost:80", "127.0.0.1", "127.0.0.1:99999", "", "::1:80"] {
            assert!(!is_literal(name) && !is_literal(name.to_owned()), "{name}");
        }
        assert!(!is_literal(("localhost", 80)) && !is_literal(("127.0.0.1:80".to_owned(), 80)));
    }

    /// A user's type may look up a name, even if it returns the same iterator as std's address
    /// types.
    #[test]
    fn types_of_users_are_no_addresses() {
        struct Name;
        impl ToSocketAddrs for Name {
            type Iter = std::option::IntoIter<SocketAddr>;

            fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
                Ok(None.into_iter())
            }
        }
        assert!(!is_literal(Name) && !is_literal(&Name));
    }

    /// A text with a lifetime shorter than `'static`.
    #[test]
    fn lifetimes_do_not_matter() {
        let owned = String::from("127.0.0.1:80");
        let short: &str = &owned[..12];
        assert_eq!(id_of::<&str>(), TypeId::of::<&'static str>());
        // SAFETY: the inferred lifetime is that of the borrow.
        unsafe {
            assert_eq!(view::<_, &str>(&short), Some(&"127.0.0.1:80"));
            assert_eq!(view::<_, String>(&short), None);
        }
    }
}
