//! How one worker reaches Redis and RabbitMQ: by proxies of ours, or from a network namespace of its own by two virtual
//! cables. Either way it can be cut off from one of them, or from both.

use anyhow::{Context, Result, ensure};
use isocost_common::test_support::proxy::{Proxy, Traffic};
use rustix::process::geteuid;
use std::{
    net::Ipv4Addr,
    process::{Command, Stdio},
};

use super::Servers;

/// What is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Redis alone.
    Redis,
    /// RabbitMQ alone.
    RabbitMq,
    /// Redis and RabbitMQ.
    Both,
}

impl Cut {
    const fn redis(self) -> bool {
        matches!(self, Self::Redis | Self::Both)
    }

    const fn rabbitmq(self) -> bool {
        matches!(self, Self::RabbitMq | Self::Both)
    }
}

/// The two ways of one worker; they end with this.
pub struct Uplink {
    redis: Proxy,
    rabbitmq: Proxy,
    /// None: the proxies cut.
    namespace: Option<Namespace>,
    environment: Vec<(&'static str, String)>,
}

impl Uplink {
    /// By proxies on loopback, which take bytes and lose them while they cut.
    ///
    /// # Errors
    /// When there is no port to be had.
    pub async fn by_proxies(servers: &Servers) -> Result<Self> {
        let here = Ipv4Addr::LOCALHOST;
        Self::start(servers, here, here, None).await
    }

    /// From a namespace of its own, whose cables are pulled. None where that is not possible: not as root, or without
    /// `ip`.
    ///
    /// # Errors
    /// When the namespace or a cable cannot be made although it should be.
    pub async fn by_namespace(servers: &Servers) -> Result<Option<Self>> {
        if !geteuid().is_root() || ip(&["netns", "list"]).is_err() {
            return Ok(None);
        }
        let Ok(namespace) = Namespace::new() else {
            return Ok(None); // Root in a container, without the right to.
        };
        let [redis, rabbitmq] = namespace.cables.each_ref().map(|cable| cable.outside);
        let inside = namespace.cables[0].inside;
        let mut uplink = Self::start(servers, redis, rabbitmq, Some(namespace)).await?;
        // Reached from outside by the cable to Redis.
        uplink.environment.extend([
            ("ISOCOST__WORKER__LISTEN", "0.0.0.0:0".to_owned()),
            ("ISOCOST__WORKER__ADVERTISE", inside.to_string()),
        ]);
        Ok(Some(uplink))
    }

    async fn start(
        servers: &Servers,
        redis_at: Ipv4Addr,
        rabbitmq_at: Ipv4Addr,
        namespace: Option<Namespace>,
    ) -> Result<Self> {
        let redis = Proxy::start_at(redis_at, servers.redis.address()).await?;
        let rabbitmq = Proxy::start_at(rabbitmq_at, servers.rabbitmq.address()?).await?;
        let coordination = servers.redis.config_at(redis.address());
        let environment = vec![
            (
                "ISOCOST__BROKER__URL",
                servers.rabbitmq.url_at(rabbitmq.address())?,
            ),
            ("ISOCOST__COORDINATION__URL", coordination.url.reveal().to_owned()),
        ];
        Ok(Self {
            redis,
            rabbitmq,
            namespace,
            environment,
        })
    }

    /// The configuration of the worker that goes by it.
    #[must_use]
    pub fn environment(&self) -> Vec<(&str, &str)> {
        let pairs = self.environment.iter();
        pairs.map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// The namespace in which it has to run, and its address there.
    #[must_use]
    pub fn namespace(&self) -> Option<(&str, Ipv4Addr)> {
        let namespace = self.namespace.as_ref()?;
        Some((&namespace.name, namespace.cables[0].inside))
    }

    /// Cuts, in silence: nobody is told that a connection has ended.
    ///
    /// # Errors
    /// When a cable cannot be pulled.
    pub async fn cut(&self, cut: Cut) -> Result<()> {
        if let Some(namespace) = &self.namespace {
            return namespace.set(cut, "down");
        }
        if cut.redis() {
            self.redis.set(Traffic::BlackHole).await?;
        }
        if cut.rabbitmq() {
            self.rabbitmq.set(Traffic::BlackHole).await?;
        }
        Ok(())
    }

    /// Joins again what was cut. Connections of before that lost something are of no use any more, as after a failure
    /// that lasted.
    ///
    /// # Errors
    /// When a cable cannot be put back.
    pub async fn heal(&self, cut: Cut) -> Result<()> {
        if let Some(namespace) = &self.namespace {
            return namespace.set(cut, "up");
        }
        self.redis.set(Traffic::Pass).await?;
        self.rabbitmq.set(Traffic::Pass).await?;
        Ok(())
    }
}

/// A network namespace; it goes, with its cables, when this is dropped.
struct Namespace {
    name: String,
    /// To Redis, and to RabbitMQ.
    cables: [Cable; 2],
}

struct Cable {
    outside: Ipv4Addr,
    inside: Ipv4Addr,
    /// The end outside.
    device: String,
}

impl Namespace {
    fn new() -> Result<Self> {
        let number: u16 = rand::random();
        let name = format!("isocost-{number:04x}");
        ip(&["netns", "add", &name])?;
        // Made first, so that whatever fails below is removed.
        let namespace = Self {
            cables: [0, 1].map(|cable| Cable::numbered(number, cable)),
            name,
        };
        for cable in &namespace.cables {
            cable.lay(&namespace.name)?;
        }
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    fn set(&self, cut: Cut, state: &str) -> Result<()> {
        let [redis, rabbitmq] = &self.cables;
        if cut.redis() {
            ip(&["link", "set", &redis.device, state])?;
        }
        if cut.rabbitmq() {
            ip(&["link", "set", &rabbitmq.device, state])?;
        }
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The cables first: a process that is about to end keeps the namespace, and its ends of them, a moment longer.
        for cable in &self.cables {
            let _ = ip(&["link", "delete", &cable.device]);
        }
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

impl Cable {
    /// In 198.18.0.0/15, which is set apart for tests of networks: four addresses a cable.
    fn numbered(namespace: u16, cable: u8) -> Self {
        let block = (u32::from(namespace) * 2 + u32::from(cable)) % (1 << 15) * 4;
        let base = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + block;
        Self {
            outside: Ipv4Addr::from(base + 1),
            inside: Ipv4Addr::from(base + 2),
            device: format!("ic{namespace:04x}{cable}"),
        }
    }

    fn lay(&self, namespace: &str) -> Result<()> {
        let (device, far) = (self.device.as_str(), format!("{}i", self.device));
        let (outside, inside) = (format!("{}/30", self.outside), format!("{}/30", self.inside));
        ip(&[
            "link", "add", device, "type", "veth", "peer", "name", &far, "netns", namespace,
        ])?;
        ip(&["address", "add", &outside, "dev", device])?;
        ip(&["link", "set", device, "up"])?;
        ip(&["-n", namespace, "address", "add", &inside, "dev", &far])?;
        ip(&["-n", namespace, "link", "set", &far, "up"])
    }
}

/// `ip` of iproute2, which answers at once.
fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("starting ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {said}", arguments.join(" "));
    Ok(())
}
