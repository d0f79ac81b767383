//! Frames that come in pieces, and frames that lie about their length.

use ottla_env::spawn;

use super::*;

/// A peer that sends these pieces, one for each read, and then closes.
#[derive(Debug, Default)]
struct Pieces {
    pieces: VecDeque<Bytes>,
    sent_bytes: usize,
    /// For each read: bytes that were sent before, and bytes that there was room for.
    reads: Vec<(usize, usize)>,
}

impl Pieces {
    fn new(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        Self { pieces: pieces.into_iter().filter(|piece| !piece.is_empty()).collect(), ..Self::default() }
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = (self.sent_bytes, buf.remaining());
        self.reads.push(read);
        if let Some(mut piece) = self.pieces.pop_front() {
            let taken = piece.split_to(piece.len().min(buf.remaining()));
            buf.put_slice(&taken);
            self.sent_bytes += taken.len();
            if !piece.is_empty() {
                self.pieces.push_front(piece);
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn frame(length: usize) -> Bytes {
    let body: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
    let prefix = i32::try_from(length).expect("a short frame").to_be_bytes();
    [&prefix[..], &body].concat().into()
}

/// What is read until the end, and how the peer was read from.
fn read(pieces: impl IntoIterator<Item = Bytes>, bytes_max: usize) -> (Vec<Bytes>, io::ErrorKind, Pieces) {
    spawn::runtime(1).expect("a runtime").block_on(async {
        let mut frames = FrameReader::new(Pieces::new(pieces), bytes_max);
        let mut seen = Vec::new();
        loop {
            match frames.next().await {
                Ok(frame) => seen.push(frame),
                Err(error) => return (seen, error.kind(), frames.half.into_inner()),
            }
        }
    })
}

/// Proves that frames come out whole wherever the network cuts them: at each byte, at every byte, and in pieces
/// that hold several frames.
#[test]
fn cut_anywhere() {
    let lengths = [0, 1, 5, 300, 0, 40];
    let all: Bytes = lengths.iter().flat_map(|length| frame(*length)).collect();
    let wanted: Vec<Bytes> = lengths.iter().map(|length| frame(*length).slice(4..)).collect();
    for at in 0..=all.len() {
        let (seen, end, _) = read([all.slice(..at), all.slice(at..)], 300);
        assert_eq!((seen, end), (wanted.clone(), io::ErrorKind::UnexpectedEof), "cut at {at}");
    }
    let (seen, end, _) = read((0..all.len()).map(|at| all.slice(at..=at)), 300);
    assert_eq!((seen, end), (wanted, io::ErrorKind::UnexpectedEof));
}

/// Proves that a frame larger than every buffer comes out whole, in pieces of any size, also behind a small one
/// that was read together with its beginning.
#[test]
fn large_frames() {
    let lengths = [10, 700_000, 3, 650_000, 700_001];
    let all: Bytes = lengths.iter().flat_map(|length| frame(*length)).collect();
    let wanted: Vec<Bytes> = lengths.iter().map(|length| frame(*length).slice(4..)).collect();
    for size in [1_000, 16_383, 16_384, 65_536, 3_000_000] {
        let pieces =
            (0..all.len()).step_by(size).map(|at| all.slice(at..all.len().min(at.saturating_add(size))));
        let (seen, end, _) = read(pieces, 1 << 20);
        assert!(seen == wanted && end == io::ErrorKind::UnexpectedEof, "pieces of {size}");
    }
}

/// Proves that a peer that closes within a frame, or within its length, is an end and not a frame.
#[test]
fn cut_short() {
    let whole = frame(70_000);
    for at in [1, 3, 4, 5, 16_384, 69_999, 70_003] {
        let (seen, end, _) = read([whole.slice(..at)], 1 << 20);
        assert_eq!((seen.len(), end), (0, io::ErrorKind::UnexpectedEof), "closed at {at}");
    }
}

/// Proves that a length beyond the limit, or below zero, is refused before anything is made for it.
#[test]
fn impossible_lengths() {
    for claimed in [-1, i32::MIN, i32::MAX, 1_001] {
        let pieces = [Bytes::copy_from_slice(&claimed.to_be_bytes()), frame(9)];
        let (seen, end, peer) = read(pieces, 1_000);
        assert_eq!((seen.len(), end), (0, io::ErrorKind::InvalidData), "{claimed} bytes");
        assert_eq!(peer.reads.len(), 1, "{claimed} bytes: nothing but the length was read");
    }
}

/// Proves that a length which is claimed and not sent costs no memory: there is never more room than twice what
/// has come, the first piece, or the largest frame that has come whole.
#[test]
fn room_is_earned() {
    let claim = Bytes::copy_from_slice(&(900_i32 << 20).to_be_bytes());
    let sent = Bytes::from(vec![7; 3 << 20]);
    let (seen, _, peer) = read([claim.clone(), sent.clone()], 1 << 30);
    assert!(seen.is_empty() && peer.reads.len() > 5);
    for (come, room) in &peer.reads {
        assert!(*room <= (*come).max(ANSWER_PIECE_BYTES), "room for {room} when {come} had come");
    }
    // behind a frame that came whole there is room for one as long at once, and for no more
    let earned = 1 << 20;
    let (seen, _, peer) = read([frame(earned), claim, sent.slice(..50_000)], 1 << 30);
    assert_eq!(seen.len(), 1);
    let behind = peer.reads.iter().filter(|(come, _)| *come >= earned + 8);
    let rooms: Vec<usize> = behind.map(|(_, room)| *room).collect();
    assert_eq!(rooms.first(), Some(&earned), "the largest frame so far, not what is claimed");
    assert!(rooms.iter().all(|room| *room <= earned), "{rooms:?}");
}
