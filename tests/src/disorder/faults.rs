//! What is done to the cluster: a seeded sequence in two lanes, one for services and one for processes and the network,
//! so that they also meet.

use super::{DEAD_MS, HEARTBEAT_MS, LEASE_MS, LOCK_MS, Plan, member::Member, now_ms, town::Town};
use crate::{checker::Fault, cluster::Role};
use anyhow::{Context, Result};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::{ops::Range, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// How often each kind comes about at least.
const AT_LEAST: usize = 2;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "see `Kind::name`")]
pub enum Kind {
    KillApi,
    KillLeader,
    KillWorker,
    KillRelay,
    FreezeShortly,
    FreezeWorker,
    FreezeLeader,
    CutOff,
    BlackHole,
    RestartRabbitMq,
    RestartRedis,
    RestartMariaDb,
    FlushRedis,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::KillApi,
        Self::KillLeader,
        Self::KillWorker,
        Self::KillRelay,
        Self::FreezeShortly,
        Self::FreezeWorker,
        Self::FreezeLeader,
        Self::CutOff,
        Self::BlackHole,
        Self::RestartRabbitMq,
        Self::RestartRedis,
        Self::RestartMariaDb,
        Self::FlushRedis,
    ];

    /// What it is called in records and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::KillApi => "kill -9 an API",
            Self::KillLeader => "kill -9 the leader",
            Self::KillWorker => "kill -9 a worker",
            Self::KillRelay => "kill -9 the relay",
            Self::FreezeShortly => "freeze a process, shorter than a lease",
            Self::FreezeWorker => "freeze a worker past its lease",
            Self::FreezeLeader => "freeze the leader past its lock",
            Self::CutOff => "cut a process off from services",
            Self::BlackHole => "services of a process in a black hole",
            Self::RestartRabbitMq => "restart RabbitMQ",
            Self::RestartRedis => "restart Redis, empty",
            Self::RestartMariaDb => "restart MariaDB",
            Self::FlushRedis => "flush Redis",
        }
    }

    const fn is_of_a_service(self) -> bool {
        matches!(
            self,
            Self::RestartRabbitMq | Self::RestartRedis | Self::RestartMariaDb | Self::FlushRedis
        )
    }
}

/// Breaks things until the time is over and every kind has come about; returns what was done, in order.
pub(super) async fn run(town: &Arc<Town>, plan: Plan, until: Instant) -> Result<Vec<Fault>> {
    let lane = |of_services: bool| {
        let kinds: Vec<Kind> = Kind::ALL
            .into_iter()
            .filter(|kind| kind.is_of_a_service() == of_services)
            .collect();
        let lane = Lane {
            town: Arc::clone(town),
            random: StdRng::seed_from_u64(plan.seed.wrapping_mul(2).wrapping_add(u64::from(of_services))),
            pauses_ms: if of_services {
                plan.service_pauses_ms
            } else {
                plan.process_pauses_ms
            },
            faults: Vec::new(),
        };
        tokio::spawn(lane.run(kinds, until))
    };
    let (services, processes) = (lane(true), lane(false));
    let mut faults = services.await.context("a lane panicked")??;
    faults.extend(processes.await.context("a lane panicked")??);
    faults.sort_by_key(|fault| fault.from);
    Ok(faults)
}

struct Lane {
    town: Arc<Town>,
    random: StdRng,
    pauses_ms: (i64, i64),
    faults: Vec<Fault>,
}

impl Lane {
    /// Round after round, each kind once in each.
    async fn run(mut self, mut kinds: Vec<Kind>, until: Instant) -> Result<Vec<Fault>> {
        for round in 0.. {
            kinds.shuffle(&mut self.random);
            for kind in &kinds {
                if round >= AT_LEAST && Instant::now() >= until {
                    return Ok(self.faults);
                }
                let pause = self.pause_ms(self.pauses_ms.0..self.pauses_ms.1);
                sleep(pause).await;
                self.inflict(*kind)
                    .await
                    .with_context(|| format!("to {}", kind.name()))?;
            }
        }
        Ok(self.faults)
    }

    async fn inflict(&mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::KillApi => self.kill(kind, Role::Api).await,
            Kind::KillLeader => self.kill(kind, Role::Dispatcher).await,
            Kind::KillWorker => self.kill(kind, Role::LedgerWorker).await,
            Kind::KillRelay => self.kill(kind, Role::Relay).await,
            Kind::FreezeShortly => {
                let place = self.random.random_range(0..self.town.members.len());
                self.freeze(kind, place, 200..LEASE_MS - 2 * HEARTBEAT_MS).await
            }
            Kind::FreezeWorker => {
                let place = self.one_of(Role::LedgerWorker).await;
                self.freeze(kind, place, LEASE_MS + 500..DEAD_MS + 3_000).await
            }
            Kind::FreezeLeader => {
                let place = self.one_of(Role::Dispatcher).await;
                self.freeze(kind, place, LOCK_MS + 500..2 * LOCK_MS + 500).await
            }
            Kind::CutOff | Kind::BlackHole => self.break_ways(kind).await,
            Kind::RestartRabbitMq | Kind::RestartRedis | Kind::RestartMariaDb => self.restart(kind).await,
            Kind::FlushRedis => self.flush(kind).await,
        }
    }

    /// One member of a role; of dispatchers the one that leads, when one does.
    async fn one_of(&mut self, role: Role) -> usize {
        let members = self.town.members.iter().enumerate();
        let places: Vec<usize> = members
            .filter(|(_, member)| member.role == role)
            .map(|(place, _)| place)
            .collect();
        // Drawn in any case, so that the sequence does not depend on who leads.
        let drawn = places[self.random.random_range(0..places.len())];
        if role == Role::Dispatcher {
            for place in places {
                if self.town.members[place].leads().await {
                    return place;
                }
            }
        }
        drawn
    }

    fn pause_ms(&mut self, range: Range<i64>) -> Duration {
        Duration::from_millis(u64::try_from(self.random.random_range(range)).unwrap_or(0))
    }

    async fn kill(&mut self, kind: Kind, role: Role) -> Result<()> {
        let place = self.one_of(role).await;
        let away = self.pause_ms(100..2_000);
        let town = Arc::clone(&self.town);
        let member = &town.members[place];
        let mut process = member.process().await;
        let number = process.id();
        let from = now_ms();
        process.kill().await?;
        member.has_ended();
        sleep(away).await;
        member.start_again(&mut process)?;
        self.note(kind, member, number, from, false);
        Ok(())
    }

    async fn freeze(&mut self, kind: Kind, place: usize, range: Range<i64>) -> Result<()> {
        let long = self.pause_ms(range);
        let town = Arc::clone(&self.town);
        let member = &town.members[place];
        let mut process = member.process().await;
        // It may have ended by itself a moment ago.
        if process.has_ended()? {
            member.has_ended();
            member.start_again(&mut process)?;
        }
        let (number, from) = (process.id(), now_ms());
        process.freeze().await?;
        sleep(long).await;
        process.thaw()?;
        drop(process);
        self.note(kind, member, number, from, true);
        Ok(())
    }

    async fn break_ways(&mut self, kind: Kind) -> Result<()> {
        let place = self.random.random_range(0..self.town.members.len());
        let town = Arc::clone(&self.town);
        let member = &town.members[place];
        let only = self.random.random_range(0..=member.ways().len());
        let long = self.pause_ms(500..DEAD_MS + 2_000);
        // One of them, or all.
        let ways = || {
            member
                .ways()
                .iter()
                .enumerate()
                .filter(|(place, _)| only == member.ways().len() || *place == only)
        };
        let from = now_ms();
        for (_, way) in ways() {
            match kind {
                Kind::CutOff => way.cut().await?,
                _ => way.black_hole().await?,
            }
        }
        sleep(long).await;
        for (_, way) in ways() {
            way.heal().await?;
        }
        let services: Vec<&str> = ways().map(|(_, way)| way.service).collect();
        self.faults.push(Fault {
            kind: kind.name().to_owned(),
            target: format!("{} from {}", member.name, services.join(", ")),
            process: None,
            from,
            to: now_ms(),
            froze: false,
        });
        Ok(())
    }

    async fn restart(&mut self, kind: Kind) -> Result<()> {
        let (gently, away) = (self.random.random_bool(0.5), self.pause_ms(100..1_500));
        let town = Arc::clone(&self.town);
        let servers = town.cluster.servers();
        let from = now_ms();
        let target = match kind {
            Kind::RestartRabbitMq => {
                if gently {
                    servers.rabbitmq.stop().await?;
                } else {
                    servers.rabbitmq.kill().await?;
                }
                sleep(away).await;
                servers.rabbitmq.restart().await?;
                "RabbitMQ"
            }
            Kind::RestartRedis => {
                if gently {
                    servers.redis.stop().await?;
                } else {
                    servers.redis.kill().await?;
                }
                sleep(away).await;
                servers.redis.restart().await?;
                "Redis"
            }
            _ => {
                if gently {
                    servers.mariadb.stop().await?;
                } else {
                    servers.mariadb.kill().await?;
                }
                sleep(away).await;
                servers.mariadb.restart().await?;
                "MariaDB"
            }
        };
        let how = if gently { "stopped" } else { "killed" };
        self.note_service(kind, &format!("{target}, {how}"), from);
        Ok(())
    }

    async fn flush(&mut self, kind: Kind) -> Result<()> {
        let url = self.town.cluster.servers().redis.config().url;
        let from = now_ms();
        let mut connection = redis::Client::open(url.reveal())?
            .get_multiplexed_async_connection()
            .await?;
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await?;
        self.note_service(kind, "Redis", from);
        Ok(())
    }

    fn note(&mut self, kind: Kind, member: &Member, process: Option<u32>, from: i64, froze: bool) {
        self.faults.push(Fault {
            kind: kind.name().to_owned(),
            target: member.name.clone(),
            process,
            from,
            to: now_ms(),
            froze,
        });
    }

    fn note_service(&mut self, kind: Kind, target: &str, from: i64) {
        self.faults.push(Fault {
            kind: kind.name().to_owned(),
            target: target.to_owned(),
            process: None,
            from,
            to: now_ms(),
            froze: false,
        });
    }
}
