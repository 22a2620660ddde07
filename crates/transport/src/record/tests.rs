//! Tests of the record layer with unmodified rustls peers, and with peers that violate the protocol.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use aws_lc_rs::aead;
use proptest::prelude::{ProptestConfig, any, proptest};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{
    AlertDescription, ClientConnection, Connection, ServerConnection, SupportedCipherSuite,
};
use rustls_pki_types::ServerName;

use super::*;
use crate::lane::LaneError;
use crate::trust::{
    FirstKey, HandshakeFault, HostPolicy, Identity, SERVER_NAME, client_config, server_config,
};

const SUITES: [SupportedCipherSuite; 3] = [
    TLS13_AES_128_GCM_SHA256,
    TLS13_AES_256_GCM_SHA384,
    TLS13_CHACHA20_POLY1305_SHA256,
];

/// One end of a connection after the handshake.
struct End {
    session: Connection,
    secrets: Arc<TrafficSecrets>,
}

impl End {
    fn keys(self) -> (TrafficKey, TrafficKey) {
        traffic_keys(self.session, &self.secrets).unwrap()
    }

    /// Returns records of `plaintext`, made by rustls.
    fn write(&mut self, mut plaintext: &[u8]) -> Vec<u8> {
        let mut records = Vec::new();
        while !plaintext.is_empty() {
            let taken = self.session.writer().write(plaintext).unwrap();
            plaintext = &plaintext[taken..];
            records.extend(self.flush());
        }
        records
    }

    fn flush(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut records).unwrap();
        }
        records
    }

    /// Returns the plaintext that rustls opens from `records`, and whether they end the stream.
    fn read(&mut self, mut records: &[u8]) -> (Vec<u8>, bool) {
        let mut plaintext = Vec::new();
        while !records.is_empty() {
            self.session.read_tls(&mut records).unwrap();
            let state = self.session.process_new_packets().unwrap();
            let start = plaintext.len();
            plaintext.resize(start + state.plaintext_bytes_to_read(), 0);
            self.session
                .reader()
                .read_exact(&mut plaintext[start..])
                .unwrap();
            if state.peer_has_closed() {
                return (plaintext, true);
            }
        }
        (plaintext, false)
    }
}

/// Returns the client's end and the server's end. Both are unmodified rustls connections with this crate's
/// configuration.
fn connected(suite: SupportedCipherSuite) -> [End; 2] {
    let home = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(home.path()).unwrap();
    let provider = CryptoProvider {
        cipher_suites: vec![suite],
        ..default_provider()
    };
    let policy = HostPolicy::AcceptNew(FirstKey::default());
    let secrets: [Arc<TrafficSecrets>; 2] = [Arc::default(), Arc::default()];
    let client = secrets[0].of_client(&client_config(
        provider,
        &identity,
        policy,
        HandshakeFault::default(),
    ));
    let server = secrets[1].of_server(&server_config(&identity));
    let name = ServerName::try_from(SERVER_NAME).unwrap();
    let sessions: [Connection; 2] = [
        ClientConnection::new(client, name).unwrap().into(),
        ServerConnection::new(server).unwrap().into(),
    ];
    let mut number = 0;
    let mut ends = sessions.map(|session| {
        number += 1;
        End {
            session,
            secrets: Arc::clone(&secrets[number - 1]),
        }
    });
    while ends
        .iter()
        .any(|end| end.session.is_handshaking() || end.session.wants_write())
    {
        for (from, to) in [(0, 1), (1, 0)] {
            let records = ends[from].flush();
            assert_eq!(ends[to].read(&records), (Vec::new(), false));
        }
    }
    ends
}

fn sealer_and_opener() -> (Sealer, Opener) {
    let [client, server] = connected(TLS13_AES_128_GCM_SHA256);
    (
        Sealer::new(client.keys().0),
        Opener::new(server.keys().1, Vec::new(), &[]),
    )
}

fn pattern(len: usize) -> Vec<u8> {
    let lap: Vec<u8> = (0..251).collect();
    let mut data = lap.repeat(len.div_ceil(251));
    data.truncate(len);
    data
}

fn seal_all(sealer: &mut Sealer, mut plaintext: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    while !plaintext.is_empty() {
        plaintext = &plaintext[sealer.seal(plaintext)..];
        records.extend_from_slice(sealer.waiting());
        sealer.clear();
    }
    records
}

/// Seals a record with this inner content type. `plaintext` may already contain another type and padding.
fn record(key: &mut TrafficKey, content_type: u8, plaintext: &[u8]) -> Vec<u8> {
    let mut body = vec![0; plaintext.len() + 1 + TAG_BYTES];
    let header = header(body.len());
    key.seal(header, content_type, plaintext, &mut body);
    [&header[..], &body].concat()
}

/// Opens all of `records`, which arrive in pieces of `piece` bytes, and reads them into slices of `want` bytes.
fn open_all(
    opener: &mut Opener,
    records: &[u8],
    (piece, want): (usize, usize),
) -> Result<Vec<u8>, RecordError> {
    let mut plaintext = Vec::new();
    let mut out = vec![0; want];
    for mut piece in records.chunks(piece) {
        while !piece.is_empty() {
            opener.receive(&mut piece).unwrap();
            loop {
                let filled = opener.read(&mut out)?;
                plaintext.extend_from_slice(&out[..filled]);
                if filled < want {
                    break;
                }
            }
        }
    }
    Ok(plaintext)
}

const WHOLE: (usize, usize) = (usize::MAX, 1 << 16);

fn sizes() -> Vec<usize> {
    let full = PLAINTEXT_BYTES_MAX;
    vec![
        0,
        1,
        2,
        72,
        full - 1,
        full,
        full + 1,
        2 * full,
        17 * full,
        300_001,
        4 << 20,
    ]
}

#[test]
fn stock_peer_reads_what_is_sealed() {
    for suite in SUITES {
        let [client, mut server] = connected(suite);
        let mut sealer = Sealer::new(client.keys().0);
        for size in sizes() {
            let records = seal_all(&mut sealer, &pattern(size));
            assert!(
                server.read(&records) == (pattern(size), false),
                "{size} bytes, {suite:?}"
            );
        }
        sealer.close();
        assert_eq!(server.read(sealer.waiting()), (Vec::new(), true));
    }
}

#[test]
fn what_a_stock_peer_writes_is_opened() {
    for suite in SUITES {
        let [client, mut server] = connected(suite);
        let mut opener = Opener::new(client.keys().1, Vec::new(), &[]);
        for size in sizes() {
            let records = server.write(&pattern(size));
            let opened = open_all(&mut opener, &records, WHOLE).unwrap();
            assert!(opened == pattern(size), "{size} bytes, {suite:?}");
        }
        server.session.send_close_notify();
        assert_eq!(open_all(&mut opener, &server.flush(), WHOLE).unwrap(), []);
        assert!(opener.has_ended());
    }
}

#[test]
fn stock_peer_follows_many_changes_of_keys() {
    for suite in SUITES {
        let [client, mut server] = connected(suite);
        let mut sealer = Sealer::new(client.keys().0);
        sealer.records_per_key_max = 3;
        for number in 0..3000 {
            let records = seal_all(&mut sealer, &pattern(number));
            assert!(
                server.read(&records) == (pattern(number), false),
                "record {number}, {suite:?}"
            );
        }
    }
}

#[test]
fn opener_follows_many_changes_of_keys() {
    for suite in SUITES {
        let [client, server] = connected(suite);
        let mut sealer = Sealer::new(client.keys().0);
        sealer.records_per_key_max = 3;
        let mut opener = Opener::new(server.keys().1, Vec::new(), &[]);
        let plaintext = pattern(300 * PLAINTEXT_BYTES_MAX + 1);
        let records = seal_all(&mut sealer, &plaintext);
        assert!(open_all(&mut opener, &records, WHOLE).unwrap() == plaintext);
    }
}

#[test]
fn no_key_seals_more_than_it_may() {
    let [client, server] = connected(TLS13_AES_128_GCM_SHA256);
    let mut sealer = Sealer::new(client.keys().0);
    sealer.records_per_key_max = 4;
    let records = seal_all(&mut sealer, &pattern(10 * PLAINTEXT_BYTES_MAX));
    let mut key = server.keys().1;
    let (mut rest, mut row) = (&records[..], Vec::new());
    while let Some((&header, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let body = usize::from(header[3]) << 8 | usize::from(header[4]);
        let mut inner = vec![0; body - TAG_BYTES];
        key.open(header, &behind[..body], &mut inner).unwrap();
        row.push(*inner.last().unwrap());
        if row.last() == Some(&HANDSHAKE) {
            key.update();
        }
        rest = &behind[body..];
    }
    assert_eq!(row, [23, 23, 23, 22, 23, 23, 23, 22, 23, 23, 23, 22, 23]);
}

#[test]
fn keys_that_were_changed_before_the_lane_are_refused() {
    let [mut client, mut server] = connected(TLS13_AES_128_GCM_SHA256);
    client.session.refresh_traffic_keys().unwrap();
    server.read(&client.flush());
    let refused = traffic_keys(server.session, &server.secrets).err();
    assert!(
        matches!(refused, Some(LaneError::Record(RecordError::Rekeyed))),
        "{refused:?}"
    );
}

#[test]
fn every_flipped_bit_is_refused() {
    let [client, mut server] = connected(TLS13_CHACHA20_POLY1305_SHA256);
    let record = record(&mut client.keys().0, APPLICATION_DATA, &pattern(40));
    let secrets = Arc::clone(&server.secrets);
    for bit in 0..8 * record.len() {
        let mut changed = record.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let key = TrafficKey::first(&aead::CHACHA20_POLY1305, &secrets);
        let mut opener = Opener::new(key, Vec::new(), &[]);
        // If the length field has increased, the opener waits for bytes that never arrive.
        let opened = open_all(&mut opener, &changed, WHOLE);
        match opened {
            Err(_) => {}
            Ok(opened) => assert!(
                opened.is_empty() && (3..5).contains(&(bit / 8)),
                "bit {bit}"
            ),
        }
    }
    assert_eq!(server.read(&record), (pattern(40), false));
}

#[test]
fn repeated_and_swapped_and_missing_records_are_refused() {
    let orders: [&[usize]; 3] = [&[0, 0], &[1, 0], &[0, 2]];
    for order in orders {
        let (mut sealer, mut opener) = sealer_and_opener();
        let records: Vec<_> = (1..4)
            .map(|size| seal_all(&mut sealer, &pattern(size)))
            .collect();
        let sent: Vec<_> = order
            .iter()
            .flat_map(|index| records[*index].clone())
            .collect();
        let opened = open_all(&mut opener, &sent, WHOLE);
        assert!(matches!(opened, Err(RecordError::Forged)), "{order:?}");
    }
}

#[test]
fn truncation_is_no_end() {
    let (mut sealer, mut opener) = sealer_and_opener();
    let mut records = seal_all(&mut sealer, &pattern(100));
    let data_bytes = records.len();
    sealer.close();
    records.extend_from_slice(sealer.waiting());
    for (index, byte) in records.iter().enumerate() {
        assert!(!opener.has_ended());
        let expected = if index + 1 == data_bytes {
            pattern(100)
        } else {
            Vec::new()
        };
        assert_eq!(open_all(&mut opener, &[*byte], WHOLE).unwrap(), expected);
    }
    assert!(opener.has_ended());
}

#[test]
fn pieces_of_any_size_make_the_same_whole() {
    let plaintext = pattern(5 * PLAINTEXT_BYTES_MAX + 77);
    for piece in [1, 4, 5, 6, 1448, 16_405, 16_406, 16_407, 65_536] {
        for want in [7, 72, 16_383, 16_384, 16_385, 100_000] {
            let (mut sealer, mut opener) = sealer_and_opener();
            let records = seal_all(&mut sealer, &plaintext);
            let opened = open_all(&mut opener, &records, (piece, want)).unwrap();
            assert!(opened == plaintext, "{piece} bytes at a time into {want}");
        }
    }
}

#[test]
fn what_arrived_with_the_greeting_comes_first() {
    let [client, server] = connected(TLS13_AES_128_GCM_SHA256);
    let mut sealer = Sealer::new(client.keys().0);
    let records = seal_all(&mut sealer, &pattern(100_000));
    let (early, late) = records.split_at(40_000);
    let mut opener = Opener::new(server.keys().1, b"before".to_vec(), early);
    let mut opened = vec![0; 6];
    assert_eq!(opener.read(&mut opened).unwrap(), 6);
    opened.extend(open_all(&mut opener, late, WHOLE).unwrap());
    assert!(opened == [&b"before"[..], &pattern(100_000)].concat());
}

#[test]
fn padding_is_taken_off() {
    let [client, server] = connected(TLS13_AES_128_GCM_SHA256);
    let (mut key, mut opener) = (
        client.keys().0,
        Opener::new(server.keys().1, Vec::new(), &[]),
    );
    for (plaintext, padding) in [
        (1, 1),
        (0, 50),
        (100, PLAINTEXT_BYTES_MAX - 100),
        (16_000, 1),
    ] {
        let padded = [
            &pattern(plaintext)[..],
            &[APPLICATION_DATA],
            &vec![0; padding - 1],
        ]
        .concat();
        let record = record(&mut key, 0, &padded);
        assert!(open_all(&mut opener, &record, (7, 64)).unwrap() == pattern(plaintext));
    }
}

#[test]
fn what_has_no_place_on_a_lane_is_refused() {
    let ticket = [4, 0, 0, 2, 0, 0];
    let update_wanted = [24, 0, 0, 1, 1];
    let two_messages = [KEY_UPDATE, KEY_UPDATE].concat();
    let cases: [(u8, &[u8], &str); 8] = [
        (0, &[], "a TLS record has no content type"),
        (0, &[0; 100], "a TLS record has no content type"),
        (HANDSHAKE, &ticket, "unexpected TLS record of type 22"),
        (
            HANDSHAKE,
            &update_wanted,
            "unexpected TLS record of type 22",
        ),
        (HANDSHAKE, &two_messages, "unexpected TLS record of type 22"),
        (ALERT, &[1], "unexpected TLS record of type 21"),
        (99, b"what", "unexpected TLS record of type 99"),
        (ALERT, &[2, 20], "the peer sent the TLS alert BadRecordMac"),
    ];
    for (content_type, plaintext, expected) in cases {
        let [client, server] = connected(TLS13_AES_128_GCM_SHA256);
        let mut opener = Opener::new(server.keys().1, Vec::new(), &[]);
        let record = record(&mut client.keys().0, content_type, plaintext);
        assert_eq!(
            open_all(&mut opener, &record, WHOLE)
                .unwrap_err()
                .to_string(),
            expected
        );
        assert!(!opener.has_ended());
    }
}

#[test]
fn alert_of_a_stock_peer_is_named() {
    let [client, mut server] = connected(TLS13_AES_128_GCM_SHA256);
    let mut opener = Opener::new(client.keys().1, Vec::new(), &[]);
    let forged = header(40).into_iter().chain([0; 40]).collect::<Vec<_>>();
    server.session.read_tls(&mut &forged[..]).unwrap();
    assert!(server.session.process_new_packets().is_err());
    let error = open_all(&mut opener, &server.flush(), WHOLE).unwrap_err();
    let expected = AlertDescription::BadRecordMac;
    assert!(
        matches!(error, RecordError::Alert { description } if description == expected),
        "{error}"
    );
}

#[test]
fn headers_of_no_record_are_refused() {
    let cases = [
        ([22, 3, 3, 0, 40], "unexpected TLS record of type 22"),
        ([21, 3, 3, 0, 2], "unexpected TLS record of type 21"),
        ([23, 3, 3, 0, 16], "a TLS record of 16 bytes is too short"),
        ([23, 3, 3, 0, 0], "a TLS record of 0 bytes is too short"),
        (
            header(BODY_BYTES_MAX + 1),
            "a TLS record of 16402 bytes is too long",
        ),
    ];
    for (header, expected) in cases {
        let (_, mut opener) = sealer_and_opener();
        assert_eq!(
            open_all(&mut opener, &header, WHOLE)
                .unwrap_err()
                .to_string(),
            expected
        );
    }
}

#[test]
fn nothing_is_read_after_the_end() {
    let [client, server] = connected(TLS13_AES_128_GCM_SHA256);
    let (mut key, mut opener) = (
        client.keys().0,
        Opener::new(server.keys().1, Vec::new(), &[]),
    );
    let records = [
        record(&mut key, APPLICATION_DATA, b"data"),
        record(&mut key, ALERT, &CLOSE_NOTIFY),
        record(&mut key, APPLICATION_DATA, b"more"),
    ];
    assert_eq!(
        open_all(&mut opener, &records.concat(), WHOLE).unwrap(),
        b"data"
    );
    assert!(opener.has_ended());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_bytes_are_refused_or_awaited(bytes: Vec<u8>, piece in 1..100_usize, want in 1..40_000_usize) {
        let (_, mut opener) = sealer_and_opener();
        if let Ok(opened) = open_all(&mut opener, &bytes, (piece, want)) {
            assert!(opened.is_empty());
        }
        assert!(!opener.has_ended());
    }

    #[test]
    fn arbitrary_bodies_are_refused(body in proptest::collection::vec(any::<u8>(), 17..500), want in 1..1000_usize) {
        let (_, mut opener) = sealer_and_opener();
        let record = [&header(body.len())[..], &body].concat();
        assert!(matches!(open_all(&mut opener, &record, (usize::MAX, want)), Err(RecordError::Forged)));
    }

    #[test]
    fn arbitrary_inner_bytes_never_panic(content_type: u8, inner: Vec<u8>, want in 1..200_usize) {
        let [client, server] = connected(TLS13_AES_128_GCM_SHA256);
        let mut opener = Opener::new(server.keys().1, Vec::new(), &[]);
        let record = record(&mut client.keys().0, content_type, &inner);
        let opened = open_all(&mut opener, &record, (usize::MAX, want));
        assert!(content_type != APPLICATION_DATA || opened.is_ok_and(|opened| opened == inner));
    }
}
