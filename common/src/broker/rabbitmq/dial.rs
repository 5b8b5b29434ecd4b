//! Opens one connection to RabbitMQ.

use super::link::Purpose;
use lapin::{
    Connection, ConnectionProperties,
    tcp::{AsyncTcpStream, OwnedTLSConfig},
    uri::{AMQPScheme, AMQPUri},
};
use parking_lot::Mutex;
use std::{io, net::Shutdown, os::fd::AsFd, sync::Arc, time::Duration};
use tokio::net::lookup_host;

/// Both sides send something at least every half of this; a side that hears nothing for twice as long gives the
/// connection up. So a black-holed connection is noticed after 16 to 20 s. In seconds, as AMQP has it.
const HEARTBEAT_SECONDS: u16 = 8;
/// Longest time for TCP and TLS, and for AMQP's handshake after them.
const HANDSHAKE: Duration = Duration::from_secs(8);

/// The URL of the broker cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("broker.url is not a URL such as amqp://user:password@host:5672/%2f: {reason}")]
pub struct InvalidBrokerUrl {
    reason: String,
}

/// Where and as whom to connect.
pub(super) struct Dial {
    uri: AMQPUri,
    name: String,
}

impl Dial {
    pub(super) fn new(url: &str, name: &str) -> Result<Self, InvalidBrokerUrl> {
        let mut uri: AMQPUri = url.parse().map_err(|reason| InvalidBrokerUrl { reason })?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        Ok(Self {
            uri,
            name: name.to_owned(),
        })
    }

    /// Who we are to the broker.
    pub(super) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    /// Host and port.
    pub(super) fn address(&self) -> String {
        format!("{}:{}", self.uri.authority.host, self.uri.authority.port)
    }

    /// Opens a connection.
    pub(super) async fn open(&self, purpose: Purpose) -> Result<(Connection, Line), String> {
        let line = Line::default();
        let opening = tokio::time::timeout(HANDSHAKE * 2, self.connect(purpose, line.clone())).await;
        match opening {
            Ok(Ok(connection)) => Ok((connection, line)),
            Ok(Err(error)) => Err(super::error::text(&error)),
            Err(_) => {
                // lapin's thread would otherwise wait for an answer for ever.
                line.cut();
                Err(format!("no answer from {} within {HANDSHAKE:?}", self.address()))
            }
        }
    }

    async fn connect(&self, purpose: Purpose, line: Line) -> lapin::Result<Connection> {
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("{} ({})", self.name, purpose.word()).into())
            .with_client_property("product".into(), "Isocost".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into())
            .with_client_property("information".into(), "distributed job scheduler".into());
        let runtime = lapin::runtime::default_runtime()?;
        Connection::connector(
            self.uri.clone(),
            runtime,
            async move |uri: AMQPUri, runtime| {
                let opening = async {
                    let host = (uri.authority.host.as_str(), uri.authority.port);
                    let mut addresses = lookup_host(host).await?.collect::<Vec<_>>().into_iter();
                    let stream = loop {
                        let address = addresses.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
                        match AsyncTcpStream::connect(&runtime, address).await {
                            Err(error) if addresses.len() == 0 => return Err(error),
                            Err(_) => {}
                            Ok(stream) => break stream,
                        }
                    };
                    if let AsyncTcpStream::Plain(stream) = &stream {
                        line.hold(stream.get_ref())?;
                    }
                    match uri.scheme {
                        AMQPScheme::AMQP => Ok(stream),
                        AMQPScheme::AMQPS => {
                            let config = OwnedTLSConfig::default();
                            stream.into_tls(&uri.authority.host, config.as_ref()).await
                        }
                    }
                };
                match tokio::time::timeout(HANDSHAKE, opening).await {
                    Ok(stream) => stream.map_err(lapin::Error::from),
                    Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
                }
            },
            properties,
        )
        .await
    }
}

/// A second handle on the socket of a connection: the only way to end one whose other side is silent, for lapin ends a
/// connection in good order or not at all.
#[derive(Clone, Default)]
pub(super) struct Line(Arc<Mutex<Option<std::net::TcpStream>>>);

impl Line {
    fn hold(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
        socket.set_nodelay(true)?;
        *self.0.lock() = Some(socket);
        Ok(())
    }

    /// Ends the connection at once.
    pub(super) fn cut(&self) {
        if let Some(socket) = self.0.lock().take() {
            // An error says that it has ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
