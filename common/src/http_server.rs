//! Taking HTTP connections and serving them, in every role. Not `axum::serve`: it gives a client for ever to send its header, so that a
//! few thousand half-sent ones keep everybody else out.

use axum::{Router, body::Body, extract::Request};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{io, time::Duration};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, warn};

/// Gives up a connection on which no whole header arrives for so long, where nobody says otherwise. Longer than a scraper of
/// metrics waits between two looks, so that it keeps its connection.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// A pause after a connection could not be taken for want of something: file descriptors, most likely.
const OUT_OF_SOMETHING: Duration = Duration::from_millis(200);

/// Serves until `shutdown`; from then on takes no new connection, and returns when every open request is answered. A
/// connection on which no whole header has arrived for `header_timeout` is closed, also one that lies idle.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    header_timeout: Duration,
    shutdown: &CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(header_timeout);
    let service =
        TowerToHyperService::new(router.map_request(|request: Request<Incoming>| request.map(Body::new)));
    let open = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        debug!(%error, "answers on a connection may be delayed");
                    }
                    let connection = http.serve_connection(TokioIo::new(stream), service.clone());
                    connections.spawn(open.watch(connection));
                }
                Err(error) => not_taken(&error).await,
            },
            Some(ended) = connections.join_next() => {
                if let Ok(Err(error)) = ended {
                    debug!(%error, "a connection ended early");
                }
            }
            () = shutdown.cancelled() => break,
        }
    }
    drop(listener);
    open.shutdown().await;
    while connections.join_next().await.is_some() {}
}

async fn not_taken(error: &io::Error) {
    let by_the_client = matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    );
    if !by_the_client {
        warn!(%error, "a connection could not be taken; trying again");
        tokio::time::sleep(OUT_OF_SOMETHING).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(10);

    /// One that says nothing, one that stops in the middle, one that was answered and goes on saying nothing.
    #[tokio::test]
    async fn a_connection_that_lies_idle_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let stop = CancellationToken::new();
        let router = Router::new().route("/", get(|| async { "here" }));
        let serving = tokio::spawn({
            let stop = stop.clone();
            async move { serve(listener, router, SHORT, &stop).await }
        });
        for sent in ["", "GET / HTTP/1.1\r\nHo", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            stream.write_all(sent.as_bytes()).await.expect("sent");
            let mut said = String::new();
            let closed = timeout(LONG, stream.read_to_string(&mut said)).await;
            assert!(closed.is_ok(), "it stayed open after {sent:?}");
            assert_eq!(said.ends_with("here"), sent.ends_with("\n\r\n"), "{said}");
        }
        stop.cancel();
        timeout(LONG, serving).await.expect("in time").expect("no panic");
    }
}
