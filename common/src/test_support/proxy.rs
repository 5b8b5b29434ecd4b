//! A TCP proxy on loopback between a client under test and its server: it breaks the network in every way a network
//! breaks, at the test's word.

use parking_lot::Mutex;
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    task::JoinHandle,
};

const CHUNK: usize = 16 << 10;

/// How bytes travel. Holds for connections that exist and for those to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// As fast as they come.
    Pass,
    /// Every chunk is held for so long, in both directions.
    Delay(Duration),
    /// Not at all for now; nothing is lost, and with the next mode they travel on.
    Stall,
    /// Into a black hole, in both directions: connections open, bytes are taken and never arrive, ends are not passed
    /// on. A connection that lost a byte so stays in the hole until it is closed or reset.
    BlackHole,
    /// As fast as they come on existing connections; new ones are refused.
    Refuse,
    /// So many more bytes of each connection in one direction, then the connection is reset.
    CutAfter {
        /// Which bytes count; the other direction passes.
        direction: Direction,
        /// How many still arrive. With 0, the first byte resets.
        bytes: u64,
    },
}

/// Where bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client.
    ToServer,
    /// From the server.
    ToClient,
}

/// What every connection obeys; each field counts or holds the latest word.
#[derive(Debug, Clone, Copy)]
struct Orders {
    traffic: Traffic,
    /// Grows with each [`Proxy::set`], so that a repeated `CutAfter` counts anew.
    version: u64,
    resets: u64,
    half_closes: u64,
}

/// A running proxy. Dropping it closes its port and its connections.
pub struct Proxy {
    address: SocketAddr,
    target: SocketAddr,
    orders: watch::Sender<Orders>,
    accepting: Mutex<Option<JoinHandle<()>>>,
    accepted: Arc<AtomicU64>,
}

impl Proxy {
    /// Opens a port of its own in front of `target`.
    ///
    /// # Errors
    /// The system's, when no port can be opened.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST, target).await
    }

    /// The same, at an address of this machine that is not loopback.
    ///
    /// # Errors
    /// The system's, when no port can be opened there.
    pub async fn start_at(address: Ipv4Addr, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((address, 0)).await?;
        let (orders, _) = watch::channel(Orders {
            traffic: Traffic::Pass,
            version: 0,
            resets: 0,
            half_closes: 0,
        });
        let proxy = Self {
            address: listener.local_addr()?,
            target,
            orders,
            accepting: Mutex::new(None),
            accepted: Arc::default(),
        };
        proxy.accept_from(listener);
        Ok(proxy)
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Changes how bytes travel, for all connections. In force when it returns.
    ///
    /// # Errors
    /// The system's, when somebody took the port while it was refused.
    pub async fn set(&self, traffic: Traffic) -> io::Result<()> {
        self.orders.send_modify(|orders| {
            orders.traffic = traffic;
            orders.version += 1;
        });
        let accepting = self.accepting.lock().take();
        match accepting {
            Some(accepting) if traffic == Traffic::Refuse => {
                accepting.abort();
                // Only the wait closes the port for certain.
                let _ = accepting.await;
            }
            Some(accepting) => *self.accepting.lock() = Some(accepting),
            None if traffic == Traffic::Refuse => {}
            None => self.accept_from(TcpListener::bind(self.address).await?),
        }
        Ok(())
    }

    /// Resets every connection (`RST`), towards both sides. New ones are treated as before.
    pub fn reset_all(&self) {
        self.orders.send_modify(|orders| orders.resets += 1);
    }

    /// Ends what every client receives (`FIN`), while what it sends still arrives.
    pub fn half_close_all(&self) {
        self.orders.send_modify(|orders| orders.half_closes += 1);
    }

    fn accept_from(&self, listener: TcpListener) {
        let (orders, target) = (self.orders.subscribe(), self.target);
        let accepted = Arc::clone(&self.accepted);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                // Its own task: it lives on while new connections are refused, and ends with the proxy.
                tokio::spawn(serve(client, target, orders.clone()));
            }
        });
        *self.accepting.lock() = Some(task);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.get_mut() {
            accepting.abort();
        }
    }
}

/// Ends a connection with `RST`, as a crashed peer or a firewall does.
fn reset(stream: TcpStream) {
    // When it cannot be set the connection ends with `FIN`, which no caller can tell us about.
    let _ = stream.set_zero_linger();
    drop(stream);
}

/// One connection, until either side or an order ends it.
async fn serve(mut client: TcpStream, target: SocketAddr, mut orders: watch::Receiver<Orders>) {
    let seen = *orders.borrow_and_update();
    if seen.traffic == Traffic::BlackHole {
        swallow(&mut client, &mut orders, seen.resets).await;
        return reset(client);
    }
    let Ok(mut server) = TcpStream::connect(target).await else {
        return reset(client);
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let passed = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = Pump::new(Direction::ToServer, orders.clone(), seen);
        let down = Pump::new(Direction::ToClient, orders.clone(), seen);
        tokio::select! {
            biased;
            () = reset_ordered(&mut orders, seen.resets) => Err(Ended),
            passed = async { tokio::try_join!(up.run(from_client, to_server), down.run(from_server, to_client)) } => passed,
        }
    };
    if passed.is_err() {
        reset(client);
        reset(server);
    }
}

/// Takes bytes until the connection is to be reset or its client is gone.
async fn swallow(client: &mut TcpStream, orders: &mut watch::Receiver<Orders>, resets: u64) {
    let mut chunk = vec![0; CHUNK];
    let reading = async { while client.read(&mut chunk).await.is_ok_and(|count| count > 0) {} };
    tokio::select! {
        () = reset_ordered(orders, resets) => {}
        () = reading => {}
    }
}

/// Waits for the order to reset, or for the end of the proxy.
async fn reset_ordered(orders: &mut watch::Receiver<Orders>, resets: u64) {
    let _ = orders.wait_for(|orders| orders.resets != resets).await;
}

async fn half_close_ordered(orders: &mut watch::Receiver<Orders>, half_closes: u64) {
    // The proxy's end resets the connection.
    let _ = orders.wait_for(|orders| orders.half_closes != half_closes).await;
}

/// The connection must be reset.
struct Ended;

/// One direction of one connection.
struct Pump {
    direction: Direction,
    orders: watch::Receiver<Orders>,
    half_closes: u64,
    /// The version of the order to cut that `left` belongs to.
    cutting: Option<u64>,
    left: u64,
    in_the_hole: bool,
}

impl Pump {
    fn new(direction: Direction, orders: watch::Receiver<Orders>, seen: Orders) -> Self {
        Self {
            direction,
            orders,
            half_closes: seen.half_closes,
            cutting: None,
            left: 0,
            in_the_hole: false,
        }
    }

    async fn run(mut self, mut from: tcp::ReadHalf<'_>, mut to: tcp::WriteHalf<'_>) -> Result<(), Ended> {
        let mut chunk = vec![0; CHUNK];
        let half_closes = self.half_closes;
        let mut half_close = self.orders.clone();
        loop {
            let count = tokio::select! {
                biased;
                () = half_close_ordered(&mut half_close, half_closes), if self.direction == Direction::ToClient => {
                    to.shutdown().await.map_err(|_| Ended)?;
                    return drain(&mut from, &mut chunk).await;
                }
                count = from.read(&mut chunk) => count,
            };
            let orders = self.when_not_stalled().await;
            if self.in_the_hole || orders.traffic == Traffic::BlackHole {
                self.in_the_hole = true;
                if !count.is_ok_and(|count| count > 0) {
                    std::future::pending::<()>().await;
                }
                continue;
            }
            let count = count.map_err(|_| Ended)?;
            if count == 0 {
                return to.shutdown().await.map_err(|_| Ended);
            }
            if let Traffic::Delay(delay) = orders.traffic {
                tokio::time::sleep(delay).await;
            }
            let allowed = self.allowed(orders, count);
            to.write_all(&chunk[..allowed]).await.map_err(|_| Ended)?;
            if allowed < count {
                return Err(Ended);
            }
        }
    }

    async fn when_not_stalled(&mut self) -> Orders {
        let flowing = self.orders.wait_for(|orders| orders.traffic != Traffic::Stall);
        let orders = flowing.await.map(|orders| *orders);
        match orders {
            Ok(orders) => orders,
            // The proxy is gone: its end resets the connection.
            Err(_) => std::future::pending().await,
        }
    }

    /// How many of `count` bytes may still pass.
    fn allowed(&mut self, orders: Orders, count: usize) -> usize {
        let Traffic::CutAfter { direction, bytes } = orders.traffic else {
            return count;
        };
        if direction != self.direction {
            return count;
        }
        if self.cutting != Some(orders.version) {
            self.cutting = Some(orders.version);
            self.left = bytes;
        }
        let allowed = count.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= allowed as u64;
        allowed
    }
}

/// Reads to the end, so that the sender is not held up.
async fn drain(from: &mut tcp::ReadHalf<'_>, chunk: &mut [u8]) -> Result<(), Ended> {
    while from.read(chunk).await.map_err(|_| Ended)? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, Result, ensure};
    use std::time::Instant;

    const SOON: Duration = Duration::from_secs(5);
    /// Long enough for a byte on loopback to arrive if anything let it through.
    const A_WHILE: Duration = Duration::from_millis(100);

    /// A proxy in front of a server that answers every byte with the same byte.
    async fn before_an_echo() -> Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let proxy = Proxy::start(listener.local_addr()?).await?;
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        Ok(proxy)
    }

    async fn connect(proxy: &Proxy) -> Result<TcpStream> {
        Ok(TcpStream::connect(proxy.address()).await?)
    }

    async fn echoes(stream: &mut TcpStream, text: &str) -> Result<()> {
        stream.write_all(text.as_bytes()).await?;
        let mut answer = vec![0; text.len()];
        tokio::time::timeout(SOON, stream.read_exact(&mut answer))
            .await
            .context("no echo")??;
        ensure!(answer == text.as_bytes());
        Ok(())
    }

    async fn silent(stream: &mut TcpStream) -> bool {
        tokio::time::timeout(A_WHILE, stream.read_u8()).await.is_err()
    }

    async fn is_reset(stream: &mut TcpStream) -> Result<()> {
        let read = tokio::time::timeout(SOON, stream.read_u8()).await?;
        let kind = read.err().map(|error| error.kind());
        ensure!(kind == Some(io::ErrorKind::ConnectionReset), "{kind:?}");
        Ok(())
    }

    #[tokio::test]
    async fn bytes_pass_both_ways() -> Result<()> {
        let proxy = before_an_echo().await?;
        let mut stream = connect(&proxy).await?;
        echoes(&mut stream, "hello").await?;
        stream.shutdown().await?;
        ensure!(
            stream.read(&mut [0; 1]).await? == 0,
            "the end did not come through"
        );
        ensure!(proxy.accepted() == 1);
        Ok(())
    }

    #[tokio::test]
    async fn delayed_bytes_take_their_time() -> Result<()> {
        let proxy = before_an_echo().await?;
        let mut stream = connect(&proxy).await?;
        proxy.set(Traffic::Delay(A_WHILE)).await?;
        let from = Instant::now();
        echoes(&mut stream, "slow").await?;
        ensure!(from.elapsed() >= A_WHILE * 2, "{:?}", from.elapsed());
        Ok(())
    }

    #[tokio::test]
    async fn a_stall_loses_nothing() -> Result<()> {
        let proxy = before_an_echo().await?;
        let mut stream = connect(&proxy).await?;
        proxy.set(Traffic::Stall).await?;
        stream.write_all(b"later").await?;
        ensure!(silent(&mut stream).await);
        proxy.set(Traffic::Pass).await?;
        let mut answer = [0; 5];
        tokio::time::timeout(SOON, stream.read_exact(&mut answer)).await??;
        ensure!(&answer == b"later");
        Ok(())
    }

    #[tokio::test]
    async fn a_black_hole_takes_everything_and_keeps_it() -> Result<()> {
        let proxy = before_an_echo().await?;
        let mut old = connect(&proxy).await?;
        echoes(&mut old, "before").await?;
        proxy.set(Traffic::BlackHole).await?;
        let mut new = connect(&proxy).await?;
        for stream in [&mut old, &mut new] {
            stream.write_all(b"lost").await?;
            ensure!(silent(stream).await);
        }
        proxy.set(Traffic::Pass).await?;
        ensure!(silent(&mut old).await, "a stream with a gap went on");
        echoes(&mut connect(&proxy).await?, "after").await?;
        proxy.reset_all();
        is_reset(&mut old).await?;
        is_reset(&mut new).await
    }

    #[tokio::test]
    async fn refusing_keeps_what_is_connected() -> Result<()> {
        let proxy = before_an_echo().await?;
        let mut old = connect(&proxy).await?;
        echoes(&mut old, "before").await?;
        proxy.set(Traffic::Refuse).await?;
        let refused = TcpStream::connect(proxy.address()).await.err();
        ensure!(refused.map(|error| error.kind()) == Some(io::ErrorKind::ConnectionRefused));
        echoes(&mut old, "during").await?;
        proxy.set(Traffic::Pass).await?;
        echoes(&mut connect(&proxy).await?, "after").await?;
        echoes(&mut old, "after").await
    }

    #[tokio::test]
    async fn a_reset_reaches_all_and_spares_the_next() -> Result<()> {
        let proxy = before_an_echo().await?;
        let (mut one, mut other) = (connect(&proxy).await?, connect(&proxy).await?);
        echoes(&mut one, "up").await?;
        echoes(&mut other, "up").await?;
        proxy.reset_all();
        is_reset(&mut one).await?;
        is_reset(&mut other).await?;
        echoes(&mut connect(&proxy).await?, "after").await
    }

    #[tokio::test]
    async fn a_half_close_ends_what_is_received_only() -> Result<()> {
        let proxy = before_an_echo().await?;
        let mut stream = connect(&proxy).await?;
        echoes(&mut stream, "up").await?;
        proxy.half_close_all();
        let ended = tokio::time::timeout(SOON, stream.read(&mut [0; 1])).await??;
        ensure!(ended == 0);
        stream.write_all(b"still accepted").await?;
        Ok(())
    }

    #[tokio::test]
    async fn the_answer_is_cut_after_so_many_bytes() -> Result<()> {
        let proxy = before_an_echo().await?;
        let mut stream = connect(&proxy).await?;
        echoes(&mut stream, "whole").await?;
        let cut = Traffic::CutAfter {
            direction: Direction::ToClient,
            bytes: 7,
        };
        proxy.set(cut).await?;
        echoes(&mut stream, "1234").await?;
        stream.write_all(b"5678").await?;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await?;
        // A reset may overtake what was sent before it.
        ensure!(b"567".starts_with(&answer), "{answer:?}");
        Ok(())
    }

    #[tokio::test]
    async fn nothing_outlives_the_proxy() -> Result<()> {
        let proxy = before_an_echo().await?;
        let mut stream = connect(&proxy).await?;
        echoes(&mut stream, "up").await?;
        let address = proxy.address();
        drop(proxy);
        is_reset(&mut stream).await?;
        let deadline = Instant::now() + SOON;
        while TcpStream::connect(address).await.is_ok() {
            ensure!(Instant::now() < deadline, "the port is still open");
        }
        Ok(())
    }
}
