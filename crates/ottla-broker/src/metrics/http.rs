//! The listener of `--http`: /metrics, /health, and a page that links to them.
//!
//! Place: beside the walk. It is bound before the folder is loaded and ends when the broker has stopped, so that a
//! long recovery and a long stop can be watched. One request per connection, GET and HEAD only, no bodies; there is
//! nothing to change here and nobody to be, so there is no authentication: bind it where only your own may come.
//!
//! Invariants: a connection may send 8 KiB of head within 5 seconds, has 10 seconds to take its answer, and there are
//! 32 at once; whatever comes beyond is closed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ottla_env::net::{self, TcpListener, TcpStream};
use ottla_env::spawn::TaskGroup;
use ottla_env::time;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::scrape::Scraper;
use super::text;
use crate::limits::{
    HTTP_CONNECTIONS_MAX, HTTP_HEAD_BYTES_MAX, HTTP_HEAD_TIME, HTTP_HEADERS_MAX, HTTP_WRITE_TIME,
};

/// A listener that was bound; ends when it is dropped.
pub struct HttpServer {
    address: SocketAddr,
    _tasks: TaskGroup,
}

impl HttpServer {
    /// Binds `host:port` and serves until the server is dropped.
    pub async fn start(address: &str, scraper: Arc<Scraper>) -> io::Result<Self> {
        let listener = net::bind(address).await?;
        let address = listener.local_addr()?;
        let mut tasks = TaskGroup::new();
        tasks.spawn("http", run(listener, scraper));
        Ok(Self { address, _tasks: tasks })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

async fn run(listener: TcpListener, scraper: Arc<Scraper>) {
    let mut connections = TaskGroup::new();
    loop {
        match net::accept(&listener).await {
            Ok((stream, peer)) => {
                connections.reap();
                if connections.len() >= HTTP_CONNECTIONS_MAX {
                    tracing::debug!(%peer, limit = HTTP_CONNECTIONS_MAX, "http connection refused: too many");
                    continue;
                }
                connections.spawn("http", serve(stream, scraper.clone()));
            }
            Err(error) => {
                tracing::error!(%error, "accepting an http connection failed");
                time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// An answer.
struct Page {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Page {
    fn plain(status: &'static str, body: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: format!("{body}\n") }
    }
}

async fn serve(mut stream: TcpStream, scraper: Arc<Scraper>) {
    let head = time::timeout(HTTP_HEAD_TIME, read_head(&mut stream)).await;
    let (page, with_body) = match head {
        Ok(Ok(asked)) => (answer(&asked, &scraper).await, asked.method != "HEAD"),
        Ok(Err(Refused::Gone)) | Err(time::Elapsed) => return,
        Ok(Err(Refused::Bad(status))) => (Page::plain(status, status), true),
    };
    let sent = time::timeout(HTTP_WRITE_TIME, send(&mut stream, &page, with_body)).await;
    if let Ok(Err(error)) = sent {
        tracing::debug!(%error, "an http answer could not be sent");
    }
}

async fn send(stream: &mut TcpStream, page: &Page, with_body: bool) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {}\r\ncontent-type: {}\r\ncontent-length: {}\r\ncache-control: no-store\r\n\
         x-content-type-options: nosniff\r\nconnection: close\r\n\r\n",
        page.status,
        page.content_type,
        page.body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if with_body {
        stream.write_all(page.body.as_bytes()).await?;
    }
    stream.shutdown().await?;
    // Closing with bytes unread would reset the connection, and the peer might not see its answer.
    let mut rest = (&mut *stream).take(HTTP_HEAD_BYTES_MAX as u64 * 8);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map(drop)
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    method: String,
    path: String,
}

/// Why a request is not looked at.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// The peer closed, or the connection broke.
    Gone,
    /// It gets this status.
    Bad(&'static str),
}

async fn read_head(stream: &mut TcpStream) -> Result<Asked, Refused> {
    let mut head = Vec::with_capacity(1024);
    loop {
        if let Some(asked) = parse(&head)? {
            return Ok(asked);
        }
        if head.len() >= HTTP_HEAD_BYTES_MAX {
            return Err(Refused::Bad("431 Request Header Fields Too Large"));
        }
        let room = HTTP_HEAD_BYTES_MAX - head.len();
        let read = (&mut *stream).take(room as u64).read_buf(&mut head).await;
        if read.map_err(|_| Refused::Gone)? == 0 {
            return Err(Refused::Gone);
        }
    }
}

/// Reads a request's head; none while its end is not there.
fn parse(head: &[u8]) -> Result<Option<Asked>, Refused> {
    let mut headers = [httparse::EMPTY_HEADER; HTTP_HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete(_)) => {
            let method = request.method.unwrap_or_default().to_owned();
            let target = request.path.unwrap_or_default();
            let path = target.split_once('?').map_or(target, |(path, _)| path).to_owned();
            let has_body = request.headers.iter().any(|header| {
                header.name.eq_ignore_ascii_case("transfer-encoding")
                    || (header.name.eq_ignore_ascii_case("content-length") && header.value != b"0")
            });
            match has_body {
                true => Err(Refused::Bad("413 Content Too Large")),
                false => Ok(Some(Asked { method, path })),
            }
        }
        Err(httparse::Error::TooManyHeaders) => Err(Refused::Bad("431 Request Header Fields Too Large")),
        Err(_) => Err(Refused::Bad("400 Bad Request")),
    }
}

async fn answer(asked: &Asked, scraper: &Arc<Scraper>) -> Page {
    if !matches!(asked.method.as_str(), "GET" | "HEAD") {
        return Page::plain("405 Method Not Allowed", "only GET and HEAD");
    }
    match asked.path.as_str() {
        "/metrics" => match scraper.scrape().await {
            Some(body) => Page { status: "200 OK", content_type: text::CONTENT_TYPE, body },
            None => Page::plain("500 Internal Server Error", "the scrape failed; the log says why"),
        },
        "/health" => {
            let (is_ready, body) = scraper.health();
            let status = if is_ready { "200 OK" } else { "503 Service Unavailable" };
            Page { status, content_type: "application/json", body }
        }
        "/" => Page { status: "200 OK", content_type: "text/html; charset=utf-8", body: INDEX.to_owned() },
        _ => Page::plain("404 Not Found", "there is /metrics, /health and /"),
    }
}

const INDEX: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Ottla</title></head>\n\
    <body><h1>Ottla</h1><ul>\n\
    <li><a href=\"/metrics\">/metrics</a>: Prometheus metrics</li>\n\
    <li><a href=\"/health\">/health</a>: 200 while all requests are served, else 503 and why</li>\n\
    </ul></body></html>\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, path: &str) -> Result<Option<Asked>, Refused> {
        Ok(Some(Asked { method: method.to_owned(), path: path.to_owned() }))
    }

    /// Proves: heads are read when they are whole, a query is ignored, bodies and nonsense are refused.
    #[test]
    fn heads() {
        assert_eq!(parse(b"GET /metrics?x=1 HTTP/1.1\r\nhost: a\r\n\r\n"), asked("GET", "/metrics"));
        assert_eq!(parse(b"HEAD / HTTP/1.0\n\n"), asked("HEAD", "/"));
        assert_eq!(parse(b"GET / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"), asked("GET", "/"));
        assert_eq!(parse(b"GET / HTTP/1.1\r\nhost: a\r\n"), Ok(None));
        assert_eq!(parse(b""), Ok(None));
        for bad in
            [&b"GET / HTTP/2.0\r\n\r\n"[..], b"GET /\r\n\r\n", b"\0\x01\x02", b"G@T / HTTP/1.1\r\n\r\n"]
        {
            assert_eq!(parse(bad), Err(Refused::Bad("400 Bad Request")), "{bad:?}");
        }
        let body = b"GET / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello";
        assert_eq!(parse(body), Err(Refused::Bad("413 Content Too Large")));
        let chunked = b"GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(parse(chunked), Err(Refused::Bad("413 Content Too Large")));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HTTP_HEADERS_MAX + 1));
        assert_eq!(parse(many.as_bytes()), Err(Refused::Bad("431 Request Header Fields Too Large")));
    }
}
