//! The private servers of a cluster.

use anyhow::{Context, Result};
use isocost_common::{
    config::{BrokerConfig, Secret},
    test_support::{MariadbServer, RedisServer, rabbitmq_server::RabbitMqServer},
};
use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{ExchangeDeclareOptions, ExchangeDeleteOptions},
    types::FieldTable,
};
use std::net::SocketAddr;
use tokio::sync::Mutex;

/// RabbitMQ, Redis and MariaDB, each on a port of its own; they end with this.
pub struct Servers {
    /// The broker; what is durable survives its restart.
    pub rabbitmq: RabbitMq,
    /// The coordination service; it restarts empty.
    pub redis: RedisServer,
    /// The database, with the durable settings of production.
    pub mariadb: MariadbServer,
}

/// A node that several tasks of a test may stop and start.
pub struct RabbitMq {
    node: Mutex<RabbitMqServer>,
    url: String,
}

impl RabbitMq {
    async fn start() -> Result<Self> {
        let node = RabbitMqServer::start().await?;
        Ok(Self {
            url: node.url(),
            node: Mutex::new(node),
        })
    }

    /// How to reach it.
    #[must_use]
    pub fn config(&self) -> BrokerConfig {
        BrokerConfig {
            url: Secret::new(&self.url),
            ..BrokerConfig::default()
        }
    }

    /// Ends it as an operator does.
    ///
    /// # Errors
    /// When it does not stop.
    pub async fn stop(&self) -> Result<()> {
        self.node.lock().await.stop().await
    }

    /// Ends it as a crash does.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(&self) -> Result<()> {
        self.node.lock().await.kill().await
    }

    /// Starts it again on the same port and data.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn restart(&self) -> Result<()> {
        self.node.lock().await.run().await
    }

    /// Deletes exchanges as an operator may, and with them every binding.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn delete_exchanges(&self, names: &[&str]) -> Result<()> {
        let channel = self.operator().await?;
        for name in names {
            channel
                .exchange_delete((*name).into(), ExchangeDeleteOptions::default())
                .await?;
        }
        Ok(())
    }

    /// Takes every binding of a fanout exchange away, and leaves the exchange: nobody is told.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn unbind_all(&self, fanout: &str) -> Result<()> {
        let channel = self.operator().await?;
        channel
            .exchange_delete(fanout.into(), ExchangeDeleteOptions::default())
            .await?;
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        channel
            .exchange_declare(
                fanout.into(),
                ExchangeKind::Fanout,
                options,
                FieldTable::default(),
            )
            .await?;
        Ok(())
    }

    async fn operator(&self) -> Result<Channel> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        Ok(connection.create_channel().await?)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When its URL names no address.
    pub fn address(&self) -> Result<SocketAddr> {
        let (_, address) = self.url.rsplit_once('@').context("a URL with a user")?;
        let (address, _) = address.split_once('/').context("a URL with a virtual host")?;
        Ok(address.parse()?)
    }

    /// How to reach it at another address, such as a proxy's.
    ///
    /// # Errors
    /// As [`RabbitMq::address`].
    pub fn url_at(&self, address: SocketAddr) -> Result<String> {
        Ok(self
            .url
            .replace(&self.address()?.to_string(), &address.to_string()))
    }

    /// An alarm about its memory, until it is told otherwise.
    ///
    /// # Errors
    /// When it cannot be told.
    pub async fn memory_alarm(&self, on: bool) -> Result<()> {
        self.node.lock().await.memory_alarm(on).await
    }

    /// `rabbitmqctl`; what it printed.
    ///
    /// # Errors
    /// When it fails.
    pub async fn ctl(&self, arguments: &[&str]) -> Result<String> {
        self.node.lock().await.ctl(arguments).await
    }
}

impl Servers {
    /// Starts all three, at once; the database with more command line options.
    ///
    /// # Errors
    /// When one does not start; `./test` installs what is missing.
    pub async fn start(database_options: &[&str]) -> Result<Self> {
        let (rabbitmq, redis, mariadb) = tokio::try_join!(
            RabbitMq::start(),
            RedisServer::start(),
            MariadbServer::start(database_options)
        )?;
        Ok(Self {
            rabbitmq,
            redis,
            mariadb,
        })
    }

    /// The configuration keys that say where they are.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("ISOCOST__STORE__URL", self.mariadb.options().url),
            ("ISOCOST__BROKER__URL", self.rabbitmq.url.clone()),
            (
                "ISOCOST__COORDINATION__URL",
                self.redis.config().url.reveal().to_owned(),
            ),
        ]
    }
}
