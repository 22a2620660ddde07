//! Tests of the encoding of openings, and of the messages that carry their extensions.

use zmove_types::{Beginning, SharedJobId};

use super::*;
use crate::error::WireError;
use crate::message::{
    CopyOrder, Fetch, GrantOrder, JobGrant, SignedJobGrant, ToReceiver, ToSender, ToSource, copy,
    decode_message, encode_message, fetch,
};
use crate::{Extension, message::Fetching};

/// Returns a list with one extension, which has the number 77.
fn extension(critical: bool) -> Extensions {
    Extensions(vec![Extension {
        number: 77,
        critical,
        value: b"z".to_vec(),
    }])
}

/// Returns the encoded fields of [`Open::new`] with a short target. Every byte of the run ID is `run`.
pub(crate) fn fixed(target: &[u8], run: u8) -> Vec<u8> {
    let length = u8::try_from(target.len()).unwrap();
    let after_run = [0, 0, 0, 0, 0, 0x83, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    [&[length], target, &[0; 5], &[run; 16], &after_run].concat()
}

#[test]
fn the_usual_opening_is_pinned() {
    let open = ToReceiver::Open(Open::new(b"/d".to_vec(), [7; 16]));
    let bytes = encode_message(&open);
    assert_eq!(bytes[4..], [&[0], &fixed(b"/d", 7)[..]].concat());
    assert_eq!(decode_message(&bytes[4..]), Ok(open));
}

#[test]
fn an_opening_with_all_options_is_pinned() {
    let shared_job = SharedJobOpening {
        job: SharedJobId([5; 16]),
        beginning: Beginning::Allowed,
        leads: true,
    };
    let open = ToReceiver::Open(Open {
        shape: TargetShape::Single {
            name: Name::from_bytes(b"f").unwrap(),
        },
        compare: Compare::Checksum,
        durability: Durability::End,
        delta: true,
        earlier: Some(EarlierSession {
            process: "a-b".to_owned(),
            lease_left_ms: 300,
        }),
        overwrite: Overwrite::Older,
        intent: Intent::Inspect,
        extraneous: Extraneous::Goes,
        inplace: true,
        keeping: PreserveOptions::default(),
        verify: true,
        proof: Proof::Media,
        grant: Some([9; 32]),
        removals_max: Some(300),
        known_state: Some(TargetState::Empty),
        shared_job: Some(Box::new(shared_job)),
        in_the_way: DirectoryReplacement::Goes,
        protected: vec![RuleText {
            pattern: b"*.o".to_vec(),
            includes: true,
        }],
        ..Open::new(b"/d".to_vec(), [7; 16])
    });
    let bytes = encode_message(&open);
    let expected = [
        &[0, 2, b'/', b'd', 1, 1, b'f', 1, 1, 1][..],
        &[7; 16],
        &[1, 3, b'a', b'-', b'b', 0xAC, 2],
        &[1, 1, 1, 1, 0xB3, 44, 0, 0, 1, 1, 1],
        &[9; 32],
        &[1, 0xAC, 2, 1, 0, 1],
        &[5; 16],
        &[1, 1, 2, 1, 3, b'*', b'.', b'o', 1, 0],
    ]
    .concat();
    assert_eq!(bytes[4..], expected);
    assert_eq!(decode_message(&expected), Ok(open));
}

#[test]
fn a_climbing_name_does_not_decode() {
    let mut open = encode_message(&ToReceiver::Open(Open {
        shape: TargetShape::Single {
            name: Name::from_bytes(b"xx").unwrap(),
        },
        ..Open::new(b"/d".to_vec(), [7; 16])
    }));
    let name = open.windows(2).position(|pair| pair == b"xx").unwrap();
    assert!(decode_message::<ToReceiver>(&open[4..]).is_ok());
    open[name..name + 2].copy_from_slice(b"..");
    assert_eq!(
        decode_message::<ToReceiver>(&open[4..]),
        Err(WireError::Message)
    );
}

#[test]
fn the_permission_to_begin_is_pinned() {
    let opened = ToSender::Opened(Opened {
        state: TargetState::Populated,
        lanes_max: 300,
        single_name: Some(Name::from_bytes(b"f").unwrap()),
        free_bytes: Some(258),
        process: "p".to_owned(),
        extensions: Extensions::NONE,
    });
    let bytes = encode_message(&opened);
    let expected = [0, 1, 0xAC, 2, 1, 1, b'f', 1, 0x82, 2, 1, b'p', 0];
    assert_eq!(bytes[4..], expected);
    assert_eq!(decode_message(&bytes[4..]), Ok(opened));
}

#[test]
fn the_text_of_a_process_is_bounded() {
    let decoded = |chars: u8| {
        let earlier = [&[chars][..], &vec![b'0'; usize::from(chars)], &[1]].concat();
        decode_message::<EarlierSession>(&earlier)
    };
    let longest = u8::try_from(PROCESS_CHARS_MAX).unwrap();
    assert!(decoded(longest).is_ok());
    assert_eq!(decoded(longest + 1), Err(WireError::Message));
}

/// Returns an opening with one extension.
fn extended(critical: bool) -> Open {
    Open {
        extensions: extension(critical),
        ..Open::new(b"/d".to_vec(), [7; 16])
    }
}

/// Encodes and decodes each message that can carry an opening (a push, a pull, a copy, a grant for a copy and a grant
/// for a node). Returns the decoded openings.
fn arrived(open: &Open) -> [Result<Open, WireError>; 5] {
    let asked = |asked: ToSource| decode_message::<ToSource>(&encode_message(&asked)[4..]);
    let open = || open.clone();
    let fetch = || Fetch {
        open: open(),
        ..fetch::tests::sample()
    };
    let pushed = decode_message(&encode_message(&ToReceiver::Open(open()))[4..]);
    let pulled = asked(ToSource::Fetch(Box::new(fetch())));
    let copied = asked(ToSource::Copy(Box::new(CopyOrder {
        fetch: fetch(),
        ..copy::tests::sample()
    })));
    let granted = asked(ToSource::Grant(Box::new(GrantOrder {
        open: open(),
        ..copy::tests::grant()
    })));
    let grant = JobGrant {
        node: [1; 32],
        receivers: vec![],
        open: open(),
        not_before: 1,
        not_after: 2,
    };
    let signed = SignedJobGrant {
        text: grant.encode(),
        grant,
        certificates: vec![],
        signature: vec![],
    };
    [
        pushed.map(|message| match message {
            ToReceiver::Open(open) => open,
            other => panic!("{other:?}"),
        }),
        pulled.map(opening_of),
        copied.map(opening_of),
        granted.map(opening_of),
        SignedJobGrant::decode(&signed.encode()).map(|signed| signed.grant.open),
    ]
}

fn opening_of(asked: ToSource) -> Open {
    match asked {
        ToSource::Fetch(fetch) => fetch.open,
        ToSource::Copy(order) => order.fetch.open,
        ToSource::Grant(order) => order.open,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_refuses_a_limit_that_it_does_not_know_wherever_the_opening_travels() {
    let error = WireError::UnknownExtension {
        what: "the opening",
        number: 77,
    };
    for open in arrived(&extended(true)) {
        assert_eq!(open, Err(error));
    }
}

/// The value is ignored but kept, because the opening is compared with the opening in a grant.
#[test]
fn an_extension_that_may_be_ignored_changes_nothing_for_a_peer_that_does_not_know_it() {
    let hinted = extended(false);
    for open in arrived(&hinted) {
        let open = open.unwrap();
        assert_eq!(open, hinted);
        assert_eq!(
            Open {
                extensions: Extensions::NONE,
                ..open
            },
            Open::new(b"/d".to_vec(), [7; 16])
        );
    }
}

#[test]
fn a_refusal_names_the_message_that_has_the_extension() {
    let fetch = Fetch {
        extensions: extension(true),
        ..fetch::tests::sample()
    };
    let error = WireError::UnknownExtension {
        what: "the order of a pull",
        number: 77,
    };
    let bytes = encode_message(&ToSource::Fetch(Box::new(fetch)));
    assert_eq!(decode_message::<ToSource>(&bytes[4..]), Err(error));
    let opened = Opened {
        state: TargetState::Empty,
        lanes_max: 1,
        single_name: None,
        free_bytes: None,
        process: String::new(),
        extensions: extension(true),
    };
    let error = WireError::UnknownExtension {
        what: "the answer to an opening",
        number: 77,
    };
    let bytes = encode_message(&ToSender::Opened(opened));
    assert_eq!(decode_message::<ToSender>(&bytes[4..]), Err(error));
}

/// A message without extensions is fixed, so it ends with its last field.
#[test]
fn nothing_follows_a_message() {
    let block = [1, 9, 0, 1, b'z'];
    let fetching = encode_message(&ToSender::Fetching(Fetching { lanes_max: 1 }));
    let open = encode_message(&ToReceiver::Open(extended(false)));
    for end in [&[0][..], &[0; 4], &block] {
        let left = Err(WireError::Trailing { left: end.len() });
        let longer = |message: &[u8]| [&message[4..], end].concat();
        let refused = [
            decode_message::<ToSender>(&longer(&fetching)).map(drop),
            decode_message::<ToReceiver>(&longer(&open)).map(drop),
        ];
        assert_eq!(refused, [left; 2]);
    }
}

#[test]
fn an_extension_of_an_opening_is_pinned() {
    let bytes = encode_message(&ToReceiver::Open(extended(false)));
    let fields = fixed(b"/d", 7);
    let block = [1, 77, 0, 1, b'z'];
    assert_eq!(
        bytes[4..],
        [&[0], &fields[..fields.len() - 1], &block].concat()
    );
}

#[test]
fn extensions_are_bounded_and_ascend() {
    use crate::limits::{EXTENSION_BYTES_MAX, EXTENSIONS_MAX};
    let decoded = |numbers: &[u16], bytes: usize| {
        let one = |number: &u16| Extension {
            number: *number,
            critical: false,
            value: vec![0; bytes],
        };
        let open = Open {
            extensions: Extensions(numbers.iter().map(one).collect()),
            ..Open::new(b"/d".to_vec(), [7; 16])
        };
        decode_message::<Open>(&encode_message(&open)[4..]).map(|decoded| decoded == open)
    };
    let many: Vec<u16> = (0..).take(EXTENSIONS_MAX + 1).collect();
    assert_eq!(decoded(&many[1..], EXTENSION_BYTES_MAX), Ok(true));
    for (numbers, bytes) in [
        (&many[..], 0),
        (&[1], EXTENSION_BYTES_MAX + 1),
        (&[2, 2], 0),
        (&[2, 1], 0),
    ] {
        assert_eq!(
            decoded(numbers, bytes),
            Err(WireError::Message),
            "{numbers:?}"
        );
    }
}
