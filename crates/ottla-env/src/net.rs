//! The door to the network: TCP listeners and streams, without Nagle's delay.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

pub use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
pub use tokio::net::{TcpListener, TcpStream};

use crate::time;

/// Listens on `host:port`; port 0 takes a free one (ask `TcpListener::local_addr`). A name that means several
/// addresses is bound at the first one that can be.
pub async fn bind(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Accepts one connection.
pub async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer))
}

/// Connects to `host:port`; `TimedOut` when it takes longer than `limit`.
pub async fn connect(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let stream = time::timeout(limit, TcpStream::connect(address))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "connecting took too long"))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that what is bound can be connected to, and that a port nobody listens on is an error.
    #[test]
    fn bind_and_connect() {
        let runtime = crate::spawn::runtime(1).expect("a runtime");
        runtime.block_on(async {
            let listener = bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("an address").to_string();
            let limit = Duration::from_secs(5);
            let (client, server) = tokio::join!(connect(&address, limit), accept(&listener));
            let (client, (server, _)) = (client.expect("connected"), server.expect("accepted"));
            assert!(client.nodelay().expect("a flag") && server.nodelay().expect("a flag"));
            drop(listener);
            assert!(connect(&address, limit).await.is_err());
        });
    }
}
