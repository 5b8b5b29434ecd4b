//! Connections with a deadline. A server that is silent, because the network swallows everything or because it is frozen,
//! would otherwise hold whoever asked it for as long as the kernel believes in the connection: for a quarter of an hour,
//! and for ever when the other side still acknowledges bytes.
//!
//! A statement that gets no answer in time fails as *unavailable*, and its connection is closed at once: nobody can know
//! what the server will still say on it. So is the connection of a statement whose future was dropped half way. Closing
//! does not tell the server, which could take as long as the statement did; a transaction that was open there ends when
//! the server notices, at the latest after [`idle_transaction_timeout`](super::StoreOptions::idle_transaction_timeout).

use super::Dialect;
use futures_util::{
    FutureExt, Stream, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    Any, AnyConnection, AnyPool, Describe, Either, Error, Execute, Executor, SqlStr, Transaction,
    any::{AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo},
    pool::PoolConnection,
};
use std::{
    fmt, io,
    ops::{Deref, DerefMut},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    time::{Instant, Sleep},
};

/// A connection of either database, inside or outside a transaction. It goes back to its pool when it is dropped, unless
/// an answer is still open on it.
pub struct Connection {
    /// None only while it is being dropped.
    line: Option<Line>,
    dialect: Dialect,
    /// Longest silence of the server; none for the embedded database, which is part of this process.
    patience: Option<Duration>,
    /// False from the moment at which a statement is sent until its answer has arrived.
    in_step: bool,
    /// A transaction of the server is open: it is rolled back when this is dropped.
    in_transaction: bool,
}

/// A pool without a connection says only that its time is over. This says what that means.
pub(super) fn explain(error: Error, means: impl FnOnce() -> String) -> Error {
    match error {
        Error::PoolTimedOut => Error::Io(io::Error::new(io::ErrorKind::TimedOut, means())),
        other => other,
    }
}

/// What statements travel on.
enum Line {
    Pooled(PoolConnection<Any>),
    /// The embedded database's transaction, which its driver keeps.
    Embedded(Transaction<'static, Any>),
}

impl Connection {
    /// Takes a connection from the pool.
    pub(super) async fn acquire(pool: &AnyPool, dialect: Dialect, patience: Duration) -> Result<Self, Error> {
        let acquired = pool.acquire().await.map_err(|error| {
            explain(error, || {
                let most = pool.options().get_max_connections();
                format!("the server takes no connection, or all {most} of this process are in use (store.max_connections)")
            })
        });
        let line = Line::Pooled(acquired?);
        Ok(Self {
            line: Some(line),
            dialect,
            patience: (dialect == Dialect::MySql).then_some(patience),
            in_step: true,
            in_transaction: false,
        })
    }

    /// Begins a transaction of the embedded database.
    pub(super) async fn begin_embedded(pool: &AnyPool) -> Result<Self, Error> {
        let dialect = Dialect::Sqlite;
        Ok(Self {
            line: Some(Line::Embedded(pool.begin_with(dialect.begin_statement()).await?)),
            dialect,
            patience: None,
            in_step: true,
            in_transaction: false,
        })
    }

    /// Begins a transaction of the server.
    pub(super) async fn begin(&mut self) -> Result<(), Error> {
        let begin = self.dialect.begin_statement();
        (&mut *self).execute(begin).await?;
        self.in_transaction = true;
        Ok(())
    }

    /// Commits the transaction.
    pub(super) async fn commit(mut self) -> Result<(), Error> {
        if let Some(Line::Embedded(transaction)) = self.line.take_if(|line| matches!(line, Line::Embedded(_)))
        {
            return transaction.commit().await;
        }
        (&mut self).execute("commit").await?;
        self.in_transaction = false;
        Ok(())
    }

    /// Which of the databases this is.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The driver's own connection, without a deadline: for migrations, which take as long as they take.
    pub(super) fn unlimited(&mut self) -> Result<&mut AnyConnection, Error> {
        self.parts().map(|parts| parts.raw).ok_or(Error::PoolClosed)
    }

    fn parts(&mut self) -> Option<Parts<'_>> {
        Some(Parts {
            raw: match self.line.as_mut()? {
                Line::Pooled(connection) => connection,
                Line::Embedded(transaction) => transaction,
            },
            patience: self.patience,
            in_step: &mut self.in_step,
        })
    }
}

/// What a statement needs of its connection.
struct Parts<'c> {
    raw: &'c mut AnyConnection,
    patience: Option<Duration>,
    in_step: &'c mut bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(Line::Pooled(connection)) = self.line.take() else {
            return;
        };
        match (self.patience, Handle::try_current()) {
            // In step, and nothing to undo: back to the pool.
            _ if self.in_step && !self.in_transaction => drop(connection),
            (Some(patience), Ok(runtime)) if self.in_step => {
                runtime.spawn(roll_back(connection, patience));
            }
            _ => cut(connection),
        }
    }
}

/// Gives a connection back to its pool once its transaction is undone.
async fn roll_back(mut connection: PoolConnection<Any>, patience: Duration) {
    let undone = tokio::time::timeout(patience, connection.execute("rollback")).await;
    if !matches!(undone, Ok(Ok(_))) {
        cut(connection);
    }
}

/// Closes a connection without a word. The orderly end would wait for the server.
fn cut(connection: PoolConnection<Any>) {
    metrics::counter!("isocost_store_connections_cut_total").increment(1);
    drop(connection.detach());
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("dialect", &self.dialect)
            .field("in_step", &self.in_step)
            .finish_non_exhaustive()
    }
}

/// A connection for reading outside a transaction.
#[derive(Debug)]
pub struct Reader(pub(super) Connection);

impl Deref for Reader {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.0
    }
}

impl DerefMut for Reader {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.0
    }
}

impl<'c> Executor<'c> for &'c mut Connection {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let Some(Parts {
            raw,
            patience,
            in_step,
        }) = self.parts()
        else {
            return stream::once(async { Err(Error::PoolClosed) }).boxed();
        };
        let answer = raw.fetch_many(query);
        match patience {
            None => answer,
            Some(patience) => Watched {
                answer,
                in_step,
                patience,
                silence: None,
            }
            .boxed(),
        }
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let Some(Parts {
            raw,
            patience,
            in_step,
        }) = self.parts()
        else {
            return async { Err(Error::PoolClosed) }.boxed();
        };
        let answer = raw.fetch_optional(query);
        match patience {
            None => answer,
            Some(patience) => watch(answer, in_step, patience).boxed(),
        }
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, Error>>
    where
        'c: 'e,
    {
        let Some(Parts {
            raw,
            patience,
            in_step,
        }) = self.parts()
        else {
            return async { Err(Error::PoolClosed) }.boxed();
        };
        let answer = raw.prepare_with(sql, parameters);
        match patience {
            None => answer,
            Some(patience) => watch(answer, in_step, patience).boxed(),
        }
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Any>, Error>>
    where
        'c: 'e,
    {
        let Some(Parts {
            raw,
            patience,
            in_step,
        }) = self.parts()
        else {
            return async { Err(Error::PoolClosed) }.boxed();
        };
        let answer = raw.describe(sql);
        match patience {
            None => answer,
            Some(patience) => watch(answer, in_step, patience).boxed(),
        }
    }
}

/// One answer, all of it within `patience`.
async fn watch<T>(
    answer: BoxFuture<'_, Result<T, Error>>,
    in_step: &mut bool,
    patience: Duration,
) -> Result<T, Error> {
    *in_step = false;
    let outcome = match tokio::time::timeout(patience, answer).await {
        Ok(outcome) => outcome,
        Err(_) => return Err(silence(patience)),
    };
    *in_step = outcome.as_ref().err().is_none_or(is_an_answer);
    outcome
}

/// An answer of many rows, of which something must come within every `patience`.
struct Watched<'e, T> {
    answer: BoxStream<'e, Result<T, Error>>,
    in_step: &'e mut bool,
    patience: Duration,
    /// Runs while nothing comes.
    silence: Option<Pin<Box<Sleep>>>,
}

impl<T> Stream for Watched<'_, T> {
    type Item = Result<T, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        *this.in_step = false;
        match this.answer.poll_next_unpin(context) {
            Poll::Ready(item) => {
                this.silence = None;
                *this.in_step = match &item {
                    None => true,
                    Some(Ok(_)) => false,
                    Some(Err(error)) => is_an_answer(error),
                };
                Poll::Ready(item)
            }
            Poll::Pending => {
                let patience = this.patience;
                let silence = this
                    .silence
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
                silence
                    .as_mut()
                    .poll(context)
                    .map(|()| Some(Err(self::silence(patience))))
            }
        }
    }
}

/// True when the server has said so itself, and with it everything that it had to say.
fn is_an_answer(error: &Error) -> bool {
    matches!(error, Error::Database(_) | Error::RowNotFound)
}

fn silence(patience: Duration) -> Error {
    metrics::counter!("isocost_store_statements_given_up_total").increment(1);
    Error::Io(io::Error::new(
        io::ErrorKind::TimedOut,
        format!("no answer to a statement within {patience:?}"),
    ))
}
