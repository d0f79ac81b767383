//! Settings every client object shares, under Kafka's names, and the one way a setting is parsed and bounded.
//!
//! Invariant: a settings value that passed `check` is inside the bounds documented at its field.

use std::fmt;
use std::time::Duration;

use ottla_protocol::types::Text;

/// A setting that is unknown or has a bad value.
///
/// ```
/// use ottla_client::{ClientSettings, SettingError};
///
/// let mut settings = ClientSettings::new("127.0.0.1:9092")?;
/// let error = settings.set("request.timeout", "100").expect_err("it ends in .ms");
/// assert!(matches!(error, SettingError::Unknown { .. }));
/// let error = settings.set("request.timeout.ms", "1").expect_err("too short");
/// assert!(error.to_string().contains("between 100 and 600000 ms"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// No such setting.
    #[error("unknown setting `{name}`; {help}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// Which names there are.
        help: String,
    },
    /// The value cannot be read or lies outside the bounds.
    #[error("setting `{name}` = `{value}`: {problem}")]
    Bad {
        /// The setting.
        name: String,
        /// The value that was given.
        value: String,
        /// What is wrong with it and what is allowed.
        problem: String,
    },
}

impl SettingError {
    /// A bad value.
    pub(crate) fn bad(name: &str, value: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::Bad { name: name.to_owned(), value: value.to_string(), problem: problem.to_string() }
    }

    /// An unknown name.
    pub(crate) fn unknown(name: &str, known: &[&str]) -> Self {
        Self::Unknown { name: name.to_owned(), help: format!("known are {}", known.join(", ")) }
    }
}

/// Where a broker listens.
///
/// ```
/// use ottla_client::HostPort;
///
/// let address = HostPort::parse("[::1]:9092").expect("an address");
/// assert_eq!((address.host.as_str(), address.port), ("::1", 9092));
/// assert_eq!(address.to_string(), "[::1]:9092");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl HostPort {
    /// Reads `host:port` or `[ipv6]:port`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (host, port) =
            text.rsplit_once(':').ok_or_else(|| format!("`{text}` is not HOST:PORT; the port is missing"))?;
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.len() > 255 {
            return Err(format!("`{text}` is not HOST:PORT; the host is empty or too long"));
        }
        let port =
            port.parse().map_err(|_| format!("`{port}` in `{text}` is not a port between 0 and 65535"))?;
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Builder methods `fn field(self, value) -> Self` for fields of the same name.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $kind:ty,)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $field(mut self, value: $kind) -> Self {
            self.$field = value.into();
            self
        })*
    };
}
pub(crate) use setters;

/// Most addresses that `bootstrap.servers` may list.
const BOOTSTRAP_SERVERS_MAX: usize = 100;

/// How to reach a cluster and how long to wait for it. Defaults are Kafka's unless the field says otherwise.
///
/// ```
/// use std::time::Duration;
/// use ottla_client::ClientSettings;
///
/// let mut settings = ClientSettings::new("kafka-1:9092,kafka-2:9092")?
///     .client_id("shop")
///     .request_timeout(Duration::from_secs(10))
///     .api_timeout(Duration::from_secs(30))
///     .retry_backoff(Duration::from_millis(50))
///     .retry_backoff_max(Duration::from_millis(500))
///     .reconnect_backoff(Duration::from_millis(50))
///     .reconnect_backoff_max(Duration::from_millis(500));
///
/// // or under Kafka's names, e.g. from a file
/// settings.set("metadata.max.age.ms", "60000")?;
/// assert!(ClientSettings::knows("client.id") && !ClientSettings::knows("group.id"));
/// assert!(settings.check().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSettings {
    /// `bootstrap.servers`: 1 to 100 addresses, comma separated. One that answers is enough.
    pub bootstrap_servers: Vec<HostPort>,
    /// `client.id`: what the broker's logs call us, at most 249 bytes. Default `ottla-client`.
    pub client_id: Text,
    /// `request.timeout.ms`: longest wait for one answer; then the connection is given up. Default 30 s, 100 ms
    /// to 10 min.
    pub request_timeout: Duration,
    /// `default.api.timeout.ms`: longest a call retries. Default 60 s, 100 ms to 1 h.
    pub api_timeout: Duration,
    /// `socket.connection.setup.timeout.ms`: longest wait for one connection. Default 10 s, 100 ms to 5 min.
    pub connection_setup_timeout: Duration,
    /// `reconnect.backoff.ms`: pause after a failed connection, doubled each time. Default 50 ms, 1 ms to 1 min.
    pub reconnect_backoff: Duration,
    /// `reconnect.backoff.max.ms`: where doubling ends. Default 1 s, 1 ms to 5 min.
    pub reconnect_backoff_max: Duration,
    /// `retry.backoff.ms`: pause before a request is repeated, doubled each time. Default 100 ms, 1 ms to 1 min.
    pub retry_backoff: Duration,
    /// `retry.backoff.max.ms`: where doubling ends. Default 1 s, 1 ms to 5 min.
    pub retry_backoff_max: Duration,
    /// `metadata.max.age.ms`: metadata older than this is fetched again. Default 5 min, 100 ms to 1 day.
    pub metadata_max_age: Duration,
    /// `receive.message.max.bytes` (librdkafka's name; Kafka has none): largest answer accepted, in bytes.
    /// Default 100 MiB, 1 KiB to 1 GiB.
    pub answer_bytes_max: usize,
}

const NAMES: &[&str] = &[
    "bootstrap.servers",
    "client.id",
    "request.timeout.ms",
    "default.api.timeout.ms",
    "socket.connection.setup.timeout.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
    "metadata.max.age.ms",
    "receive.message.max.bytes",
];

impl ClientSettings {
    /// Settings for the cluster behind these addresses (`HOST:PORT`, comma separated), else defaults.
    pub fn new(bootstrap_servers: &str) -> Result<Self, SettingError> {
        let mut settings = Self {
            bootstrap_servers: Vec::new(),
            client_id: Text::from_static("ottla-client"),
            request_timeout: Duration::from_secs(30),
            api_timeout: Duration::from_secs(60),
            connection_setup_timeout: Duration::from_secs(10),
            reconnect_backoff: Duration::from_millis(50),
            reconnect_backoff_max: Duration::from_secs(1),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            metadata_max_age: Duration::from_secs(300),
            answer_bytes_max: 100 << 20,
        };
        settings.set("bootstrap.servers", bootstrap_servers)?;
        Ok(settings)
    }

    setters! {
        /// Sets `client.id`.
        client_id: impl Into<Text>,
        /// Sets `request.timeout.ms`.
        request_timeout: Duration,
        /// Sets `default.api.timeout.ms`.
        api_timeout: Duration,
        /// Sets `retry.backoff.ms`.
        retry_backoff: Duration,
        /// Sets `retry.backoff.max.ms`.
        retry_backoff_max: Duration,
        /// Sets `reconnect.backoff.ms`.
        reconnect_backoff: Duration,
        /// Sets `reconnect.backoff.max.ms`.
        reconnect_backoff_max: Duration,
    }

    /// Whether `set` knows this name.
    pub fn knows(name: &str) -> bool {
        NAMES.contains(&name)
    }

    /// Sets one setting by Kafka's name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        match name {
            "bootstrap.servers" => self.bootstrap_servers = parse_servers(name, value)?,
            "client.id" => self.client_id = Text::from(value),
            "request.timeout.ms" => self.request_timeout = millis(name, value)?,
            "default.api.timeout.ms" => self.api_timeout = millis(name, value)?,
            "socket.connection.setup.timeout.ms" => self.connection_setup_timeout = millis(name, value)?,
            "reconnect.backoff.ms" => self.reconnect_backoff = millis(name, value)?,
            "reconnect.backoff.max.ms" => self.reconnect_backoff_max = millis(name, value)?,
            "retry.backoff.ms" => self.retry_backoff = millis(name, value)?,
            "retry.backoff.max.ms" => self.retry_backoff_max = millis(name, value)?,
            "metadata.max.age.ms" => self.metadata_max_age = millis(name, value)?,
            "receive.message.max.bytes" => self.answer_bytes_max = number(name, value)?,
            _ => return Err(SettingError::unknown(name, NAMES)),
        }
        self.check()
    }

    /// Checks every bound.
    pub fn check(&self) -> Result<(), SettingError> {
        let servers = self.bootstrap_servers.len();
        if servers == 0 || servers > BOOTSTRAP_SERVERS_MAX {
            return Err(SettingError::bad(
                "bootstrap.servers",
                format!("{servers} addresses"),
                "give 1 to 100 addresses as HOST:PORT, comma separated",
            ));
        }
        if self.client_id.len() > 249 {
            return Err(SettingError::bad("client.id", &self.client_id, "longer than 249 bytes"));
        }
        let minute = Duration::from_secs(60);
        check_duration("request.timeout.ms", self.request_timeout, 100, 10 * minute)?;
        check_duration("default.api.timeout.ms", self.api_timeout, 100, 60 * minute)?;
        check_duration("socket.connection.setup.timeout.ms", self.connection_setup_timeout, 100, 5 * minute)?;
        check_duration("reconnect.backoff.ms", self.reconnect_backoff, 1, minute)?;
        check_duration("reconnect.backoff.max.ms", self.reconnect_backoff_max, 1, 5 * minute)?;
        check_duration("retry.backoff.ms", self.retry_backoff, 1, minute)?;
        check_duration("retry.backoff.max.ms", self.retry_backoff_max, 1, 5 * minute)?;
        check_duration("metadata.max.age.ms", self.metadata_max_age, 100, 24 * 60 * minute)?;
        check_size("receive.message.max.bytes", self.answer_bytes_max, 1 << 10, 1 << 30)
    }
}

fn parse_servers(name: &str, value: &str) -> Result<Vec<HostPort>, SettingError> {
    value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| HostPort::parse(part).map_err(|problem| SettingError::bad(name, value, problem)))
        .collect()
}

/// Reads a number.
pub(crate) fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, SettingError> {
    value.trim().parse().map_err(|_| SettingError::bad(name, value, "not a whole number that fits"))
}

/// Reads a duration in milliseconds.
pub(crate) fn millis(name: &str, value: &str) -> Result<Duration, SettingError> {
    number(name, value).map(Duration::from_millis)
}

/// Checks that a duration lies in `low_ms..=high`.
pub(crate) fn check_duration(
    name: &str,
    value: Duration,
    low_ms: u64,
    high: Duration,
) -> Result<(), SettingError> {
    if value >= Duration::from_millis(low_ms) && value <= high {
        return Ok(());
    }
    let bounds = format!("must be between {low_ms} and {} ms", high.as_millis());
    Err(SettingError::bad(name, value.as_millis(), bounds))
}

/// Checks that a size lies in `low..=high`.
pub(crate) fn check_size(name: &str, value: usize, low: usize, high: usize) -> Result<(), SettingError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(SettingError::bad(name, value, format!("must be between {low} and {high}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves that addresses of every form are read, and that bad ones name what is wrong.
    #[test]
    fn addresses() {
        let two = ClientSettings::new("a:1, [::1]:2,").expect("two addresses");
        let shown: Vec<String> = two.bootstrap_servers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a:1", "[::1]:2"]);
        for (bad, word) in
            [("", "1 to 100"), ("a", "port is missing"), ("a:x", "not a port"), (":1", "host is empty")]
        {
            let error = ClientSettings::new(bad).expect_err("refused").to_string();
            assert!(error.contains(word) && error.contains("bootstrap.servers"), "{error}");
        }
    }

    /// Proves that every documented name is accepted, that bounds hold, and that unknown names are refused.
    #[test]
    fn names_and_bounds() {
        let mut settings = ClientSettings::new("a:1").expect("an address");
        for name in NAMES {
            let value = if *name == "bootstrap.servers" { "b:2" } else { "2000" };
            settings.set(name, value).expect("a known name");
        }
        assert_eq!(settings.request_timeout, Duration::from_secs(2));
        let error = settings.set("request.timeout.ms", "5").expect_err("too short").to_string();
        assert!(error.contains("between 100 and 600000"), "{error}");
        assert!(matches!(settings.set("linger", "5"), Err(SettingError::Unknown { .. })));
        assert!(matches!(settings.set("retry.backoff.ms", "soon"), Err(SettingError::Bad { .. })));
    }
}
