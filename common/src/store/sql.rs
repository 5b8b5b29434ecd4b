//! Small helpers to write multi-row statements once for both dialects, and to read rows.

use super::{CHUNK, Connection, Dialect, StoreError};
use crate::time::EpochMillis;
use sqlx::{Any, AssertSqlSafe, Row as _, any::AnyArguments, any::AnyRow, query::Query};
use std::{fmt::Display, str::FromStr};

/// `count` groups of `width` placeholders: `(?,?),(?,?)`; with width 0, `count` bare ones: `?,?`.
#[must_use]
pub fn placeholders(count: usize, width: usize) -> String {
    let group = if width == 0 {
        "?".to_owned()
    } else {
        format!("({})", vec!["?"; width].join(","))
    };
    vec![group; count].join(",")
}

/// Splits rows for multi-row statements: chunks of [`CHUNK`], then powers of two. So there are few different statements,
/// which the connections keep prepared: one for every possible number of rows would fill SQLite's memory, and have the
/// server parse nearly every large statement anew.
pub fn row_chunks<T>(rows: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let size = match rest.len() {
            0 => return None,
            len if len >= CHUNK => CHUNK,
            len => 1 << len.ilog2(),
        };
        let (chunk, after) = rest.split_at(size);
        rest = after;
        Some(chunk)
    })
}

/// Splits keys for `in (…)` lists, as [`row_chunks`] and for its reason, but each chunk is filled up to a power of two
/// by repeating its last key: that changes no answer and saves statements.
pub fn key_chunks<T>(keys: &[T]) -> impl Iterator<Item = Vec<&T>> {
    keys.chunks(CHUNK).map(filled_up)
}

fn filled_up<T>(chunk: &[T]) -> Vec<&T> {
    let size = chunk.len().next_power_of_two().min(CHUNK);
    let last = chunk.last().into_iter().cycle();
    chunk.iter().chain(last).take(size).collect()
}

/// Runs, for each chunk of keys, the statement that `write` makes of a list of placeholders, which must be its last. Sorted
/// keys make two writers lock alike.
///
/// # Errors
/// [`StoreError`] of the first chunk that fails.
pub async fn execute_for_keys(
    connection: &mut Connection,
    keys: &[impl Display],
    write: impl Fn(&str) -> AnyQuery<'static>,
) -> Result<(), StoreError> {
    for chunk in key_chunks(keys) {
        let mut query = write(&placeholders(chunk.len(), 0));
        for key in chunk {
            query = query.bind(key.to_string());
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// An UPDATE of many rows with values of their own, in one statement a chunk.
///
/// ```text
/// update job_execution set status = v.status where job_execution.id = v.id and job_execution.status = 3
/// ```
/// where `v` holds the given rows. The first of `columns` is the key and is not set.
pub struct BulkUpdate<'a> {
    /// The table.
    pub table: &'a str,
    /// The key column, then the columns to set, in the order their values are bound.
    pub columns: &'a [&'a str],
    /// More assignments, the same for every row, such as `version = job_info.version + 1`; empty for none. What changes
    /// from call to call is a `?`: every text of its own would be a statement to prepare, and to keep.
    pub set: &'a str,
    /// The values of those `?`.
    pub set_values: &'a [i64],
    /// The guard, in terms of the table and of `v`; `1 = 1` for none.
    pub guard: &'a str,
}

/// The query type that bind functions receive.
pub type AnyQuery<'q> = Query<'q, Any, AnyArguments>;

impl BulkUpdate<'_> {
    /// Runs it for all `rows`, which should be sorted by key; `bind` binds the values of one row in column order.
    /// Returns how many rows the guards let through.
    ///
    /// # Errors
    /// [`StoreError`] of the first chunk that fails.
    pub async fn execute<T, F>(
        &self,
        connection: &mut Connection,
        dialect: Dialect,
        rows: &[T],
        bind: F,
    ) -> Result<u64, StoreError>
    where
        F: for<'q> Fn(AnyQuery<'q>, &T) -> AnyQuery<'q>,
    {
        let mut changed = 0;
        // A row that is repeated is still updated, and counted, once.
        for chunk in key_chunks(rows) {
            let mut query = sqlx::query(AssertSqlSafe(self.statement(dialect, chunk.len())));
            for row in chunk {
                query = bind(query, row);
            }
            for value in self.set_values {
                query = query.bind(*value);
            }
            changed += query.execute(&mut *connection).await?.rows_affected();
        }
        Ok(changed)
    }

    fn statement(&self, dialect: Dialect, rows: usize) -> String {
        let Self {
            table,
            columns,
            set,
            guard,
            ..
        } = self;
        let key = columns[0];
        let named: Vec<_> = columns.iter().map(|column| format!("? as {column}")).collect();
        let mut values = format!("select {}", named.join(", "));
        let more = format!(" union all select {}", vec!["?"; columns.len()].join(", "));
        for _ in 1..rows {
            values.push_str(&more);
        }
        let target = if dialect == Dialect::MySql {
            format!("{table}.")
        } else {
            String::new()
        };
        let mut assignments: Vec<_> = columns[1..]
            .iter()
            .map(|c| format!("{target}{c} = v.{c}"))
            .collect();
        if !set.is_empty() {
            assignments.push((*set).to_owned());
        }
        let assignments = assignments.join(", ");
        match dialect {
            Dialect::MySql => format!(
                "update {table} join ({values}) v on {table}.{key} = v.{key} set {assignments} where {guard}"
            ),
            // The rows first, as above: values are bound in the order of the text.
            Dialect::Sqlite => format!(
                "with v as ({values}) update {table} set {assignments} from v where {table}.{key} = v.{key} and ({guard})"
            ),
        }
    }
}

/// Reads columns of a row by name, as the types of the model.
pub struct Row<'a>(pub &'a AnyRow);

impl Row<'_> {
    /// A column that is never null.
    ///
    /// # Errors
    /// [`StoreError`] when the column is missing, null or of another type.
    pub fn int(&self, column: &str) -> Result<i64, StoreError> {
        Ok(self.0.try_get::<i64, _>(column)?)
    }

    /// A nullable number.
    ///
    /// # Errors
    /// As [`Row::int`].
    pub fn opt_int(&self, column: &str) -> Result<Option<i64>, StoreError> {
        Ok(self.0.try_get::<Option<i64>, _>(column)?)
    }

    /// A number that fits a smaller type.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when it does not fit.
    pub fn number<T: TryFrom<i64>>(&self, column: &str) -> Result<T, StoreError> {
        let value = self.int(column)?;
        T::try_from(value).map_err(|_| StoreError::Corrupt(format!("{column} = {value}")))
    }

    /// An instant.
    ///
    /// # Errors
    /// As [`Row::int`].
    pub fn instant(&self, column: &str) -> Result<EpochMillis, StoreError> {
        self.int(column).map(EpochMillis)
    }

    /// A nullable instant.
    ///
    /// # Errors
    /// As [`Row::int`].
    pub fn opt_instant(&self, column: &str) -> Result<Option<EpochMillis>, StoreError> {
        Ok(self.opt_int(column)?.map(EpochMillis))
    }

    /// Text.
    ///
    /// # Errors
    /// As [`Row::int`].
    pub fn text(&self, column: &str) -> Result<String, StoreError> {
        Ok(self.0.try_get::<String, _>(column)?)
    }

    /// Nullable text.
    ///
    /// # Errors
    /// As [`Row::int`].
    pub fn opt_text(&self, column: &str) -> Result<Option<String>, StoreError> {
        Ok(self.0.try_get::<Option<String>, _>(column)?)
    }

    /// Text parsed into a type: an id, for instance.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when it cannot be parsed.
    pub fn parsed<T: FromStr>(&self, column: &str) -> Result<T, StoreError> {
        let text = self.text(column)?;
        text.parse()
            .map_err(|_| StoreError::Corrupt(format!("{column} = {text}")))
    }

    /// Nullable text parsed into a type.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when it cannot be parsed.
    pub fn opt_parsed<T: FromStr>(&self, column: &str) -> Result<Option<T>, StoreError> {
        let Some(text) = self.opt_text(column)? else {
            return Ok(None);
        };
        text.parse()
            .map(Some)
            .map_err(|_| StoreError::Corrupt(format!("{column} = {text}")))
    }

    /// A stored code turned into its enum.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a code without a meaning.
    pub fn coded<T>(&self, column: &str, from_code: impl Fn(i64) -> Option<T>) -> Result<T, StoreError> {
        let code = self.int(column)?;
        from_code(code).ok_or_else(|| StoreError::Corrupt(format!("{column} = {code}")))
    }

    /// JSON text turned into a type.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the text does not fit.
    pub fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> Result<T, StoreError> {
        let text = self.text(column)?;
        serde_json::from_str(&text).map_err(|error| StoreError::Corrupt(format!("{column}: {error}")))
    }

    /// Nullable JSON text turned into a type; null is the type's default.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the text does not fit.
    pub fn json_or_default<T: serde::de::DeserializeOwned + Default>(
        &self,
        column: &str,
    ) -> Result<T, StoreError> {
        let Some(text) = self.opt_text(column)? else {
            return Ok(T::default());
        };
        serde_json::from_str(&text).map_err(|error| StoreError::Corrupt(format!("{column}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_split_into_few_sizes_and_none_is_lost() {
        for count in 0..1_300 {
            let rows: Vec<usize> = (0..count).collect();
            let chunks: Vec<_> = row_chunks(&rows).collect();
            assert!(
                chunks
                    .iter()
                    .all(|chunk| chunk.len() == CHUNK || chunk.len().is_power_of_two())
            );
            assert_eq!(chunks.concat(), rows);
        }
    }

    #[test]
    fn keys_are_filled_up_with_the_last_one() {
        for count in 0..1_300 {
            let keys: Vec<usize> = (0..count).collect();
            let mut seen: Vec<&usize> = Vec::new();
            for chunk in key_chunks(&keys) {
                assert!(chunk.len() == CHUNK || chunk.len().is_power_of_two());
                assert!(chunk.len() <= CHUNK);
                seen.extend(chunk);
            }
            seen.dedup();
            assert!(seen.into_iter().eq(&keys), "{count} keys");
        }
    }
}
