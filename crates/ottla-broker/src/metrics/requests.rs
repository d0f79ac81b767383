//! Requests by API and version, their errors, bytes and times.
//!
//! Place: a connection makes a [`Ticket`] of each frame before it is dispatched, and gives it back when the answer is
//! on its way to the socket. Per request: one atomic at arrival, five at the answer, on cells that only the
//! connections of one group share. Errors are counted in one table for all, since they are few.

use std::time::Duration;

use ottla_core::command::ConnectionId;
use ottla_protocol::api::{API_TABLE, Api, ApiKey};
use ottla_protocol::codec::ErrorTally;
use ottla_protocol::error::ErrorCode;

use super::cells::{Counter, Histogram, Observed, Sharded, TIMES};

/// APIs in the table.
const APIS: usize = API_TABLE.len();
/// Where the versions of an API begin in the flat array of all; one more entry at the end: their number.
const VERSIONS_FROM: [usize; APIS + 1] = versions_from();
const VERSIONS: usize = VERSIONS_FROM[APIS];

const fn versions_from() -> [usize; APIS + 1] {
    let mut from = [0; APIS + 1];
    let mut row = 0;
    while row < APIS {
        let api = &API_TABLE[row];
        from[row + 1] = from[row] + (api.max - api.min + 1) as usize;
        row += 1;
    }
    from
}

/// One request between its arrival and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    row: usize,
    arrived: Duration,
}

/// What one group of connections counts.
struct Group {
    versions: Box<[Counter]>,
    apis: Box<[ApiCells]>,
}

struct ApiCells {
    request_bytes: Counter,
    response_bytes: Counter,
    total_time: Histogram,
}

/// All requests.
pub struct Requests {
    groups: Sharded<Group>,
    errors: Box<[Counter]>,
}

/// Sums of one API.
pub struct OfApi {
    /// Which.
    pub api: Api,
    /// Requests by version.
    pub versions: Vec<(i16, u64)>,
    /// Bytes of requests, without the length in front.
    pub request_bytes: u64,
    /// Bytes of answers, as before.
    pub response_bytes: u64,
    /// From the last byte of the request to the answer's last byte in the socket's buffer.
    pub total_time: Observed,
    /// Errors in answers, by code; partitions count one by one.
    pub errors: Vec<(ErrorCode, u64)>,
}

impl Default for Requests {
    fn default() -> Self {
        let api = |_| ApiCells {
            request_bytes: Counter::default(),
            response_bytes: Counter::default(),
            total_time: Histogram::new(TIMES),
        };
        let group = || Group {
            versions: (0..VERSIONS).map(|_| Counter::default()).collect(),
            apis: (0..APIS).map(api).collect(),
        };
        let errors = (0..APIS * ErrorCode::ALL.len()).map(|_| Counter::default()).collect();
        Self { groups: Sharded::new(group), errors }
    }
}

/// Row of an API in the table; keys ascend in it.
fn row_of(key: ApiKey) -> Option<usize> {
    API_TABLE.binary_search_by_key(&key.code(), |api| api.key.code()).ok()
}

impl Requests {
    /// A request has arrived as `frame`; none when it is none that is known.
    pub fn arrived(&self, connection: ConnectionId, frame: &[u8], now: Duration) -> Option<Ticket> {
        let (code, rest) = frame.split_first_chunk()?;
        let (version, _) = rest.split_first_chunk()?;
        let row = row_of(ApiKey::from_code(i16::from_be_bytes(*code))?)?;
        let (api, version) = (API_TABLE.get(row)?, i16::from_be_bytes(*version));
        if version < api.min || version > api.max {
            return None;
        }
        let group = self.groups.of(connection);
        let place = VERSIONS_FROM.get(row)? + usize::try_from(version - api.min).ok()?;
        group.versions.get(place)?.add(1);
        group.apis.get(row)?.request_bytes.add(frame.len() as u64);
        Some(Ticket { row, arrived: now })
    }

    /// The answer has left.
    pub fn answered(
        &self,
        connection: ConnectionId,
        ticket: Ticket,
        bytes: usize,
        errors: ErrorTally,
        now: Duration,
    ) {
        let Some(cells) = self.groups.of(connection).apis.get(ticket.row) else { return };
        cells.response_bytes.add(bytes as u64);
        cells.total_time.observe_time(now.saturating_sub(ticket.arrived));
        for (code, count) in errors.iter() {
            let place = ErrorCode::ALL.binary_search(&ErrorCode::from_code(code)).unwrap_or(0);
            if let Some(cell) = self.errors.get(ticket.row * ErrorCode::ALL.len() + place) {
                cell.add(count.into());
            }
        }
    }

    /// The sums of every API that was asked for.
    pub fn read(&self) -> Vec<OfApi> {
        let all = API_TABLE.iter().enumerate().map(|(row, api)| self.read_api(row, *api));
        all.filter(|of_api| !of_api.versions.is_empty()).collect()
    }

    fn read_api(&self, row: usize, api: Api) -> OfApi {
        let sum = |of: &dyn Fn(&Group) -> u64| self.groups.iter().map(of).sum::<u64>();
        let versions = (api.min..=api.max).enumerate();
        let versions = versions
            .map(|(at, version)| (version, sum(&|group| group.versions[VERSIONS_FROM[row] + at].get())))
            .filter(|(_, count)| *count > 0);
        let empty = Histogram::new(TIMES).read();
        let times = self.groups.iter().map(|group| group.apis[row].total_time.read());
        let codes = ErrorCode::ALL.iter().enumerate();
        let errors = codes
            .map(|(at, code)| (*code, self.errors[row * ErrorCode::ALL.len() + at].get()))
            .filter(|(_, count)| *count > 0);
        OfApi {
            api,
            versions: versions.collect(),
            request_bytes: sum(&|group| group.apis[row].request_bytes.get()),
            response_bytes: sum(&|group| group.apis[row].response_bytes.get()),
            total_time: times.fold(empty, Observed::plus),
            errors: errors.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a request is counted under its API and version, its answer with bytes, time and errors, whatever
    /// group the connection is in; what is no request is not counted.
    #[test]
    fn counted_by_api_version_and_error() {
        let requests = Requests::default();
        let frame = |code: i16, version: i16| [code.to_be_bytes(), version.to_be_bytes(), [0, 9]].concat();
        let at = Duration::from_millis;
        for connection in [1, 2, 18].map(ConnectionId) {
            let ticket = requests.arrived(connection, &frame(0, 9), at(5)).expect("Produce 9");
            let mut writer = ottla_protocol::codec::Writer::new();
            [0, 3, 3, 20, -1].into_iter().for_each(|code| writer.error_code(code));
            requests.answered(connection, ticket, 100, writer.error_tally(), at(7));
        }
        assert!(requests.arrived(ConnectionId(3), &frame(94, 0), at(5)).is_some(), "the last of the table");
        for bad in [&[0, 0, 0][..], &frame(0, 14), &frame(0, -1), &frame(4, 0), &frame(-1, 0), &[]] {
            assert!(requests.arrived(ConnectionId(3), bad, at(5)).is_none(), "{bad:?}");
        }
        let read = requests.read();
        let [produce, last] = &read[..] else { panic!("two APIs, not {}", read.len()) };
        assert_eq!((produce.api.key, &produce.versions[..]), (ApiKey::Produce, &[(9, 3)][..]));
        assert_eq!((produce.request_bytes, produce.response_bytes), (18, 300));
        assert_eq!((produce.total_time.count(), produce.total_time.sum), (3, 6_000_000));
        assert_eq!(
            produce.errors,
            vec![
                (ErrorCode::UnknownServerError, 3),
                (ErrorCode::UnknownTopicOrPartition, 6),
                (ErrorCode::NotEnoughReplicasAfterAppend, 3)
            ]
        );
        assert_eq!((last.api.key.code(), last.total_time.count()), (94, 0));
    }
}
