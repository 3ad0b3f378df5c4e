//! TLS by rustls over std's sockets, on both sides, with a certificate made at the start.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls::{StreamOwned, crypto::ring};

use crate::crowd::{Gate, all_wait, join_all};

/// Several TLS records.
const LENGTH: usize = 50_000;

pub(super) fn run(clients: usize) {
    let (server, client_config) = configs();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let gate = Arc::new(Gate::new());
    let acceptor = gosched::thread::spawn({
        let gate = gate.clone();
        move || {
            let connections = (0..clients).map(|_| {
                let (stream, _) = listener.accept().unwrap();
                let (server, gate) = (server.clone(), gate.clone());
                gosched::thread::spawn(move || serve(stream, server, &gate))
            });
            let connections = connections.collect::<Vec<_>>();
            join_all(connections).into_iter().sum::<usize>()
        }
    });
    let goroutines = (0..clients).map(|i| {
        let config = client_config.clone();
        gosched::thread::spawn(move || client(i, address, config))
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    all_wait(2 * clients + 1);
    gate.open();
    join_all(goroutines);
    let bytes = acceptor.join().unwrap();
    stranger_is_refused(client_config);
    println!("{clients} clients, {bytes} bytes each way");
}

/// A server with a new certificate, and a client that trusts only this one.
fn configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

/// Sends everything back until the client ends the session. Returns the number of bytes.
fn serve(stream: TcpStream, config: Arc<ServerConfig>, gate: &Gate) -> usize {
    let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    let mut name = [0; 8];
    tls.read_exact(&mut name).unwrap();
    gate.wait();
    tls.write_all(&name).unwrap();
    let mut block = [0; 4096];
    let mut bytes = name.len();
    loop {
        match tls.read(&mut block).unwrap() {
            0 => return bytes,
            n => {
                tls.write_all(&block[..n]).unwrap();
                bytes += n;
            }
        }
    }
}

fn open(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(config, name).unwrap();
    StreamOwned::new(connection, TcpStream::connect(address).unwrap())
}

fn client(i: usize, address: SocketAddr, config: Arc<ClientConfig>) {
    let mut tls = open(address, config);
    let name = (i as u64).to_le_bytes();
    tls.write_all(&name).unwrap();
    let mut back = [0; 8];
    tls.read_exact(&mut back).unwrap();
    assert_eq!(back, name);

    let sent: Vec<u8> = (0..LENGTH).map(|k| (k * i) as u8).collect();
    let mut received = vec![0; LENGTH];
    for (sent, received) in sent.chunks(10_000).zip(received.chunks_mut(10_000)) {
        tls.write_all(sent).unwrap();
        tls.read_exact(received).unwrap();
    }
    assert!(received == sent, "client {i} has other bytes than it sent");
    tls.conn.send_close_notify();
    tls.flush().unwrap();
}

/// The client refuses a server with a certificate that it does not trust.
fn stranger_is_refused(config: Arc<ClientConfig>) {
    let (stranger, _) = configs();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = gosched::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut tls = StreamOwned::new(ServerConnection::new(stranger).unwrap(), stream);
        tls.read(&mut [0]).unwrap_err().kind()
    });
    let refused = open(address, config).write_all(b"hello").unwrap_err();
    println!(
        "the client: {refused}; the server: {}",
        server.join().unwrap()
    );
}
