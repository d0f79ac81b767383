//! An outbox table in PostgreSQL as a source: rows that a service wrote in the transaction of its own change.
//!
//! The order of rows is that of (transaction id, row id), and only rows of transactions older than every transaction
//! that still runs are read: `xid < pg_snapshot_xmin(pg_current_snapshot())`. So a transaction that commits late
//! cannot be passed over, which reading a sequence would do; a long one delays what comes after it and loses nothing.
//!
//! What must hold: writers commit with `synchronous_commit` on (else a crash of the server can take back rows that
//! were read, and give their transaction ids away again); rows are inserted and never changed; the server is the same
//! one. Its system identifier and timeline are in the position, and a change stops the source by name.
//!
//! The table (see [`Outbox::ddl`]) needs PostgreSQL 13 or later for `xid8`. Place in the walk: a [`Source`] with one
//! partition. Not here: logical replication, TLS to the server (the connection is for the same host or a private net).

use std::time::Duration;

use bytes::Bytes;
use postgres::{Client, Config, NoTls};

use super::{Piece, Position, Reader, Source, SourceError, SourceId, SourceRecord};
use crate::bytes_codec::{Malformed, Reader as BytesReader, Writer, checked};

const VERSION: u8 = 1;
/// Longest that a connection attempt or a statement may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Rows that are deleted at once behind a committed position.
const DELETE_ROWS_MAX: i64 = 10_000;

/// Settings of an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxSettings {
    /// Connection parameters, `host=... user=... dbname=...`, as `libpq` has them.
    pub connection: String,
    /// The table, `name` or `schema.name`: letters, digits and underscores.
    pub table: String,
    /// Most rows that are read at once; default 1,000.
    pub rows_max: i64,
    /// Rows behind a committed position are deleted; default true.
    pub delete_committed: bool,
}

impl OutboxSettings {
    /// With the defaults.
    pub fn new(connection: &str, table: &str) -> Self {
        let (connection, table) = (connection.to_owned(), table.to_owned());
        Self { connection, table, rows_max: 1_000, delete_committed: true }
    }
}

/// Behind which row, of which server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OutboxPosition {
    system: u64,
    timeline: i32,
    xid: u64,
    id: i64,
}

impl OutboxPosition {
    fn encode(self) -> Position {
        let mut out = Writer(vec![VERSION]);
        out.u64(self.system);
        out.i32(self.timeline);
        out.u64(self.xid);
        out.i64(self.id);
        Position(Bytes::from(out.sealed()))
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = BytesReader(checked(bytes)?);
        if input.u8()? != VERSION {
            return Err(Malformed::Checksum);
        }
        let found =
            Self { system: input.u64()?, timeline: input.i32()?, xid: input.u64()?, id: input.i64()? };
        input.finish()?;
        Ok(found)
    }
}

/// The source.
pub struct Outbox {
    settings: OutboxSettings,
    config: Config,
    /// For deleting; the reader has a connection of its own.
    cleaner: Option<Client>,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("table", &self.settings.table).finish_non_exhaustive() // no password
    }
}

fn is_table_name(name: &str) -> bool {
    let part = |part: &str| {
        (1..=63).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    name.split('.').count() <= 2 && name.split('.').all(part)
}

impl Outbox {
    /// Checks the settings. Connects only when it is opened.
    pub fn new(settings: OutboxSettings) -> Result<Self, SourceError> {
        let setup = |reason: String| SourceError::Setup { id: settings.table.clone(), reason };
        if !is_table_name(&settings.table) {
            return Err(setup(
                "the table must be `name` or `schema.name` of letters, digits and underscores".into(),
            ));
        }
        let mut config: Config =
            settings.connection.parse().map_err(|error: postgres::Error| setup(error.to_string()))?;
        config.connect_timeout(TIMEOUT).tcp_user_timeout(TIMEOUT).keepalives(true);
        config.application_name("ottla-streams outbox");
        Ok(Self { settings, config, cleaner: None })
    }

    /// The statements that make such a table: for whoever sets up the service's database.
    pub fn ddl(table: &str) -> String {
        format!(
            "create table {table} (\n  id bigint generated always as identity,\n  \
             xid xid8 not null default pg_current_xact_id(),\n  topic text,\n  key bytea,\n  value bytea,\n  \
             primary key (xid, id)\n)"
        )
    }

    fn id(&self) -> SourceId {
        SourceId(format!("outbox:{}", self.settings.table))
    }
}

/// What went wrong with the server: a wrong set-up stays wrong, all else may pass.
fn told(id: &str, error: &postgres::Error) -> SourceError {
    let id = id.to_owned();
    // 42: syntax, unknown table or column, no privilege. 28: who we are. 3D: no such database. 0A: too old.
    let class = error.code().map(|state| state.code()[..2].to_owned()).unwrap_or_default();
    let reason = match error.as_db_error() {
        Some(told) => format!("{}: {}", told.code().code(), told.message()),
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    };
    if ["42", "28", "3D", "0A"].contains(&class.as_str()) {
        SourceError::Setup { id, reason }
    } else {
        SourceError::Retriable { id, reason }
    }
}

fn connect(config: &Config, id: &str) -> Result<Client, SourceError> {
    let mut client = config.connect(NoTls).map_err(|error| told(id, &error))?;
    let timeout_ms = TIMEOUT.as_millis();
    let set =
        format!("set statement_timeout = {timeout_ms}; set default_transaction_isolation = 'read committed'");
    client.batch_execute(&set).map_err(|error| told(id, &error))?;
    Ok(client)
}

/// The server: system identifier, timeline, and whether its commits are durable unless a session says otherwise.
fn server(client: &mut Client, id: &str) -> Result<(u64, i32), SourceError> {
    let row = client
        .query_one(
            "select s.system_identifier, c.timeline_id, current_setting('synchronous_commit'), pg_is_in_recovery() \
             from pg_control_system() s, pg_control_checkpoint() c",
            &[],
        )
        .map_err(|error| told(id, &error))?;
    let (system, timeline): (i64, i32) = (row.get(0), row.get(1));
    let (durable, standby): (String, bool) = (row.get(2), row.get(3));
    let setup = |reason: &str| SourceError::Setup { id: id.to_owned(), reason: reason.to_owned() };
    if standby {
        return Err(setup(
            "the server is a standby, which knows no running transactions: connect to the primary",
        ));
    }
    if durable == "off" {
        return Err(setup(
            "synchronous_commit is off: a crash of the server could take back rows that were read. Set it to on, in \
             the server and in all sessions that write to the outbox",
        ));
    }
    Ok((system.cast_unsigned(), timeline))
}

impl Source for Outbox {
    fn partitions(&mut self) -> Result<Vec<SourceId>, SourceError> {
        Ok(vec![self.id()])
    }

    fn open(&mut self, id: &SourceId, from: Option<&Position>) -> Result<Box<dyn Reader>, SourceError> {
        let mut client = connect(&self.config, &id.0)?;
        let (system, timeline) = server(&mut client, &id.0)?;
        let position = match from {
            None => OutboxPosition { system, timeline, xid: 0, id: i64::MIN },
            Some(position) => OutboxPosition::decode(&position.0)
                .map_err(|error| SourceError::Position { id: id.0.clone(), reason: error.to_string() })?,
        };
        if position.system != system || position.timeline != timeline {
            let (was, is) = ((position.system, position.timeline), (system, timeline));
            let reason = format!(
                "the position is of server {} on timeline {}, this is {} on timeline {}: rows may have been lost or \
                 numbered anew",
                was.0, was.1, is.0, is.1
            );
            return Err(SourceError::Changed { id: id.0.clone(), reason });
        }
        let query = format!(
            "select o.xid::text, o.id, o.topic, o.key, o.value from {} o \
             where (o.xid, o.id) > ($1::text::xid8, $2) and o.xid < pg_snapshot_xmin(pg_current_snapshot()) \
             order by o.xid, o.id limit $3", // `order by xid` alone would be the text of the result
            self.settings.table
        );
        let statement = client.prepare(&query).map_err(|error| told(&id.0, &error))?;
        let rows_max = self.settings.rows_max.max(1);
        Ok(Box::new(OutboxReader {
            id: id.0.clone(),
            client,
            statement,
            position,
            rows_max,
            pause_until: Duration::ZERO,
        }))
    }

    fn committed(&mut self, id: &SourceId, position: &Position) {
        if !self.settings.delete_committed {
            return;
        }
        if let Err(error) = self.delete(id, position) {
            self.cleaner = None;
            tracing::warn!(source = %id, %error, "rows that are in Kafka could not be deleted; the next commit tries again");
        }
    }
}

impl Outbox {
    fn delete(&mut self, id: &SourceId, position: &Position) -> Result<(), SourceError> {
        let position = OutboxPosition::decode(&position.0)
            .map_err(|error| SourceError::Position { id: id.0.clone(), reason: error.to_string() })?;
        let client = match &mut self.cleaner {
            Some(client) => client,
            None => {
                let mut client = connect(&self.config, &id.0)?;
                let found = server(&mut client, &id.0)?;
                if found != (position.system, position.timeline) {
                    return Err(SourceError::Changed {
                        id: id.0.clone(),
                        reason: "another server".to_owned(),
                    });
                }
                self.cleaner.insert(client)
            }
        };
        let table = &self.settings.table;
        let statement = format!(
            "delete from {table} where (xid, id) in (select xid, id from {table} \
             where (xid, id) <= ($1::text::xid8, $2) order by xid, id limit $3)"
        );
        client
            .execute(&statement, &[&position.xid.to_string(), &position.id, &DELETE_ROWS_MAX])
            .map(drop)
            .map_err(|error| told(&id.0, &error))
    }
}

/// How long an empty table is left alone.
const IDLE_PAUSE: Duration = Duration::from_millis(50);

struct OutboxReader {
    id: String,
    client: Client,
    statement: postgres::Statement,
    position: OutboxPosition,
    rows_max: i64,
    pause_until: Duration,
}

impl Reader for OutboxReader {
    fn read(&mut self, now: Duration, _bytes_max: usize) -> Result<Option<Piece>, SourceError> {
        if now < self.pause_until {
            return Ok(None);
        }
        let (xid, id) = (self.position.xid.to_string(), self.position.id);
        let rows = self
            .client
            .query(&self.statement, &[&xid, &id, &self.rows_max])
            .map_err(|error| told(&self.id, &error))?;
        let Some(last) = rows.last() else {
            self.pause_until = now + IDLE_PAUSE;
            return Ok(None);
        };
        let xid: String = last.get(0);
        let xid = xid.parse().map_err(|_| SourceError::Setup {
            id: self.id.clone(),
            reason: format!("column xid holds {xid}, which is no transaction id"),
        })?;
        self.position = OutboxPosition { xid, id: last.get(1), ..self.position };
        let bytes = |value: Option<Vec<u8>>| value.map(Bytes::from);
        let record = |row: &postgres::Row| SourceRecord {
            topic: row.get(2),
            key: bytes(row.get(3)),
            value: bytes(row.get(4)),
            ..SourceRecord::default()
        };
        Ok(Some(Piece { records: rows.iter().map(record).collect(), position: self.position.encode() }))
    }
}

#[cfg(test)]
mod tests;
