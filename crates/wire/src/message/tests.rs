use super::*;
use crate::extensions::Extensions;
use crate::limits::{
    ITEMS_OUTSTANDING_MAX, LISTED_NAMES_MAX, LISTED_RANGES_MAX, MESSAGE_STRINGS_MAX,
    REMOVE_NAMES_MAX, STORED_ITEMS_MAX,
};
use proptest::prelude::{any, prop_oneof, proptest};
use zmove_types::{Metadata, Name, RelPath, Timestamp};

#[test]
fn of_a_reason_without_end_no_more_is_kept_than_a_user_reads() {
    let text = "\u{e4}".repeat(1 << 18);
    let refusal = Refusal {
        code: RefusalCode::Denied,
        text: text.clone(),
    };
    for message in [
        ToSender::Refused(refusal),
        ToSender::Waiting(Waiting { ahead: 0, text }),
    ] {
        let (ToSender::Refused(Refusal { text, .. }) | ToSender::Waiting(Waiting { text, .. })) =
            decode_message(&encode_message(&message)[4..]).unwrap()
        else {
            panic!("another message")
        };
        assert_eq!(text, "\u{e4}".repeat(4096));
    }
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of the bytes of each message"
)]
fn tags_are_pinned() {
    let tag = |message: &ToReceiver| encode_message(message)[4];
    assert_eq!(
        tag(&ToReceiver::Request(Request {
            number: 0,
            question: Question::Send(vec![])
        })),
        1
    );
    assert_eq!(tag(&ToReceiver::Abandon { file: 0 }), 2);
    assert_eq!(
        tag(&ToReceiver::Announce {
            items: 0,
            mismatches: 0
        }),
        3
    );
    assert_eq!(tag(&ToReceiver::LaneLost { items: vec![] }), 4);
    assert_eq!(
        tag(&ToReceiver::Remove(Remove {
            remove: 0,
            groups: vec![]
        })),
        5
    );
    assert_eq!(
        tag(&ToReceiver::Sample {
            sample: 0,
            when: SampleTime::Now
        }),
        6
    );
    assert_eq!(
        tag(&ToReceiver::Sweep(SweepOrder {
            bytes: 0,
            millis: 0
        })),
        7
    );
    let found = FoundSoFar {
        files: 1,
        bytes: 300,
        skipped_bytes: 2,
        all: true,
    };
    assert_eq!(
        encode_message(&ToReceiver::Found(found))[4..],
        [9, 1, 0xAC, 2, 2, 1]
    );
    let tag = |message: &ToSender| encode_message(message)[4];
    assert_eq!(
        tag(&ToSender::Opened(Opened {
            state: TargetState::Empty,
            lanes_max: 1,
            single_name: None,
            free_bytes: None,
            process: String::new(),
            extensions: Extensions::NONE,
        })),
        0
    );
    assert_eq!(
        tag(&ToSender::Refused(Refusal {
            code: RefusalCode::Denied,
            text: String::new()
        })),
        1
    );
    for (number, code) in [(8, RefusalCode::Full), (9, RefusalCode::NotUnderWay)] {
        let refusal = Refusal {
            code,
            text: String::new(),
        };
        assert_eq!(
            encode_message(&ToSender::Refused(refusal))[4..],
            [1, number, 0]
        );
    }
    assert_eq!(tag(&ToSender::LaneFailed), 22);
    assert_eq!(
        tag(&ToSender::Reply(Reply {
            number: 0,
            answer: Answer::Verdicts(vec![])
        })),
        2
    );
    assert_eq!(tag(&ToSender::Stored(Stored::default())), 3);
    assert_eq!(tag(&ToSender::Fault(fault::tests::sample())), 4);
    assert_eq!(tag(&ToSender::Finished(Finished::default())), 5);
    assert_eq!(
        tag(&ToSender::Held(Held {
            request: 0,
            file: 0,
            first: 0,
            cvs: vec![],
            end: true
        })),
        6
    );
    assert_eq!(
        tag(&ToSender::Removed {
            remove: 0,
            entries: 0
        }),
        7
    );
    assert_eq!(tag(&ToSender::Sampled(Sampled::default())), 8);
    assert_eq!(
        tag(&ToSender::Swept(Swept {
            sizes: vec![],
            complete: true,
            fault: None
        })),
        9
    );
    assert_eq!(tag(&ToSender::Counters(CounterList::default())), 10);
    assert_eq!(tag(&ToSender::Published { items: vec![] }), 11);
    assert_eq!(
        tag(&ToSender::Waiting(Waiting {
            ahead: 0,
            text: String::new()
        })),
        12
    );
    assert_eq!(
        tag(&ToSender::RateMax {
            bytes_per_second: 0
        }),
        16
    );
}

#[test]
fn a_rate_is_pinned() {
    let rate = ToSender::RateMax {
        bytes_per_second: 300,
    };
    assert_eq!(encode_message(&rate), [3, 0, 0, 0, 16, 0xAC, 2]);
    assert_eq!(decode_message(&[16, 0xAC, 2]), Ok(rate));
}

#[test]
fn a_wait_in_line_is_pinned() {
    let waiting = ToSender::Waiting(Waiting {
        ahead: 300,
        text: "x".to_owned(),
    });
    let expected = [5, 0, 0, 0, 12, 0xAC, 2, 1, b'x'];
    assert_eq!(encode_message(&waiting), expected);
    assert_eq!(decode_message(&expected[4..]), Ok(waiting));
}

#[test]
fn what_a_receiver_waits_for_is_pinned() {
    let held_up = ToSender::HeldUp {
        text: "x".to_owned(),
    };
    assert_eq!(encode_message(&held_up), [3, 0, 0, 0, 23, 1, b'x']);
    assert_eq!(decode_message(&[23, 1, b'x']), Ok(held_up));
}

#[test]
fn what_a_cleaning_says_is_pinned() {
    assert_eq!(encode_message(&Intent::Clean)[4..], [3]);
    assert_eq!(encode_message(&Intent::CleanPreview)[4..], [4]);
    let leftover = |kind, fate| {
        ToSender::Leftover(Leftover {
            path: RelPath::from_bytes(b"a").unwrap(),
            kind,
            bytes: 300,
            fate,
        })
    };
    let until = LeftoverFate::StaysUntil { seconds: 300 };
    for (kind, fate, expected) in [
        (
            LeftoverKind::Unfinished,
            LeftoverFate::Goes,
            &[0, 0xAC, 2, 0][..],
        ),
        (
            LeftoverKind::Directory,
            LeftoverFate::Goes,
            &[1, 0xAC, 2, 0],
        ),
        (LeftoverKind::Part, until, &[2, 0xAC, 2, 1, 0xAC, 2]),
        (
            LeftoverKind::SharedJob,
            LeftoverFate::Foreign,
            &[3, 0xAC, 2, 2],
        ),
    ] {
        let expected = [&[24, 1, b'a'], expected].concat();
        assert_eq!(encode_message(&leftover(kind, fate))[4..], expected);
        assert_eq!(decode_message(&expected), Ok(leftover(kind, fate)));
    }
}

#[test]
fn what_is_published_is_pinned_and_bounded() {
    let fault = EntryFault {
        entry: 3,
        operation: Operation::Flush,
        code: FaultCode::Os(5),
    };
    let items = vec![
        PublishedItem {
            item: 300,
            faults: vec![fault],
        },
        PublishedItem {
            item: 2,
            faults: vec![],
        },
    ];
    let published = ToSender::Published { items };
    let expected = [12, 0, 0, 0, 11, 2, 0xAC, 2, 1, 3, 4, 0, 10, 2, 0];
    assert_eq!(encode_message(&published)[4..], expected[4..]);
    assert_eq!(decode_message(&expected[4..]), Ok(published));
    let many = |count| {
        let items = vec![
            PublishedItem {
                item: 1,
                faults: vec![]
            };
            count
        ];
        decode_message::<ToSender>(&encode_message(&ToSender::Published { items })[4..])
    };
    assert!(many(STORED_ITEMS_MAX).is_ok());
    assert_eq!(many(STORED_ITEMS_MAX + 1), Err(WireError::Message));
}

#[test]
fn what_a_probe_says_is_pinned() {
    assert_eq!(encode_message(&Intent::Measure)[4..], [2]);
    let sample = ToReceiver::Sample {
        sample: 300,
        when: SampleTime::Ended(7),
    };
    assert_eq!(encode_message(&sample), [5, 0, 0, 0, 6, 0xAC, 2, 1, 7]);
    let sweep = ToReceiver::Sweep(SweepOrder {
        bytes: 5,
        millis: 6,
    });
    assert_eq!(encode_message(&sweep)[4..], [7, 5, 6]);
    let sampled = ToSender::Sampled(Sampled {
        sample: 1,
        clock_us: 300,
        first_us: Some(4),
        bytes: 5,
        cpu_us: 6,
    });
    assert_eq!(encode_message(&sampled)[4..], [8, 1, 0xAC, 2, 1, 4, 5, 6]);
    let size = SweptSize {
        file_bytes: 1024,
        write: Some(3),
        read: None,
    };
    let fault = Some((Operation::Write, FaultCode::Os(28)));
    let swept = ToSender::Swept(Swept {
        sizes: vec![size],
        complete: true,
        fault,
    });
    assert_eq!(
        encode_message(&swept)[4..],
        [9, 1, 0x80, 8, 1, 3, 0, 1, 1, 2, 0, 56]
    );
    assert_eq!(decode_message(&encode_message(&swept)[4..]), Ok(swept));
}

#[test]
fn sizes_of_a_sweep_are_few() {
    let swept = |count| {
        let sizes = vec![
            SweptSize {
                file_bytes: 1,
                write: None,
                read: None
            };
            count
        ];
        encode_message(&ToSender::Swept(Swept {
            sizes,
            complete: false,
            fault: None,
        }))
    };
    let decode = |bytes: Vec<u8>| decode_message::<ToSender>(&bytes[4..]);
    assert!(decode(swept(crate::limits::SWEEP_SIZES_MAX)).is_ok());
    assert_eq!(
        decode(swept(crate::limits::SWEEP_SIZES_MAX + 1)),
        Err(WireError::Message)
    );
}

#[test]
fn held_groups_and_what_marks_a_source_are_pinned() {
    let held = ToSender::Held(Held {
        request: 1,
        file: 2,
        first: 300,
        cvs: vec![[7; 32]],
        end: true,
    });
    let mut expected = vec![39, 0, 0, 0, 6, 1, 2, 0xAC, 2, 1];
    expected.extend([7; 32]);
    expected.push(1);
    assert_eq!(encode_message(&held), expected);
    assert_eq!(decode_message(&expected[4..]), Ok(held));
    let mark = SourceMark {
        inode: 5,
        ctime: Timestamp {
            seconds: -1,
            nanos: 6,
        },
    };
    let mtime = Timestamp {
        seconds: 3,
        nanos: 4,
    };
    let file = SourceEntry {
        name: Name::from_bytes(b"f").unwrap(),
        kind: SourceKind::File {
            bytes: 1,
            mark: Some(mark),
        },
        metadata: SourceMetadata {
            metadata: Metadata::new(2, mtime),
            xattrs: None,
        },
    };
    assert_eq!(
        encode_message(&file)[4..],
        [1, b'f', 0, 1, 1, 5, 1, 6, 2, 6, 4, 0, 0]
    );
    let differences = Differences::TIME.and(Differences::MODE);
    for (verdict, bytes) in [
        (Verdict::Replace(differences), &[3, 6][..]),
        (Verdict::Set(differences), &[4, 6]),
        (Verdict::Resume, &[7]),
        (Verdict::Delta, &[8]),
    ] {
        assert_eq!(encode_message(&verdict)[4..], *bytes);
    }
}

#[test]
fn a_list_that_is_too_long_is_refused() {
    let lost = |count| {
        encode_message(&ToReceiver::LaneLost {
            items: vec![300; count],
        })
    };
    let decode = |bytes: Vec<u8>| decode_message::<ToReceiver>(&bytes[4..]);
    assert!(decode(lost(ITEMS_OUTSTANDING_MAX)).is_ok());
    assert_eq!(
        decode(lost(ITEMS_OUTSTANDING_MAX + 1)),
        Err(WireError::Message)
    );
    // A list with a length of 2^63 and no elements.
    assert_eq!(
        decode([&[0; 4][..], &[4], &[0xFF; 8], &[0x7F]].concat()),
        Err(WireError::Message)
    );
}

fn names(count: usize) -> Vec<Name> {
    vec![Name::from_bytes(b"a").unwrap(); count]
}

fn listing(ranges: usize, names_each: usize) -> Vec<u8> {
    let after = Some(names(1).remove(0));
    let range = NameRange {
        directory: RelPath::root(),
        after,
        names: names(names_each),
        open: true,
    };
    encode_message(&ToReceiver::Request(Request {
        number: 1,
        question: Question::Extraneous(vec![range; ranges]),
    }))
}

#[test]
fn lists_in_lists_are_bounded_together() {
    let decode = |bytes: Vec<u8>| decode_message::<ToReceiver>(&bytes[4..]).map(drop);
    let per_range = LISTED_NAMES_MAX / LISTED_RANGES_MAX;
    assert_eq!(
        decode(listing(LISTED_RANGES_MAX, per_range)),
        Ok(()),
        "as many as a sender may say"
    );
    let (value, limit) = (MESSAGE_STRINGS_MAX as u64 + 1, MESSAGE_STRINGS_MAX as u64);
    let error = WireError::OverLimit {
        what: "number of names and paths in a message",
        value,
        limit,
    };
    assert_eq!(
        decode(listing(LISTED_RANGES_MAX, per_range + 1)),
        Err(error)
    );
    assert_eq!(decode(listing(2, LISTED_NAMES_MAX)), Err(error));
    let group = RemoveGroup {
        directory: RelPath::root(),
        names: names(REMOVE_NAMES_MAX),
    };
    let groups = vec![group; REMOVE_NAMES_MAX];
    assert_eq!(
        decode(encode_message(&ToReceiver::Remove(Remove {
            remove: 1,
            groups
        }))),
        Err(error)
    );
}

#[test]
fn a_message_is_decoded_as_far_as_there_is_room() {
    let bytes = listing(3, 100);
    let decode = |most: usize| {
        let (mut left, none) = (most, WireError::OutOfOrder { what: "room" });
        let room = |strings| {
            left.checked_sub(strings)
                .map(|rest| left = rest)
                .ok_or(none)
        };
        let decoded = decode_message_within::<ToReceiver>(&bytes[4..], room);
        (decoded.map(drop), left)
    };
    assert_eq!(decode(1000), (Ok(()), 1000 - 320), "306 of them");
    assert_eq!(
        decode(200),
        (Err(WireError::OutOfOrder { what: "room" }), 8)
    );
}

#[test]
fn left_over_bytes_are_refused() {
    let mut bytes = encode_message(&ToReceiver::Abandon { file: 1 });
    bytes.push(0);
    assert_eq!(
        decode_message::<ToReceiver>(&bytes[4..]),
        Err(WireError::Trailing { left: 1 })
    );
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_the_encoding_of_what_they_decode_to(bytes in prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        proptest::collection::vec(0..40_u8, 0..20),
    ]) {
        let to_receiver = decode_message::<ToReceiver>(&bytes).map(|it| encode_message(&it));
        let to_sender = decode_message::<ToSender>(&bytes).map(|it| encode_message(&it));
        for encoded in [to_receiver, to_sender].into_iter().flatten() {
            assert_eq!(encoded[4..], bytes);
        }
    }

    #[test]
    fn stored_survives_the_wire(items in proptest::collection::vec((any::<u64>(), any::<bool>()), 0..50)) {
        let items = items.into_iter().map(|(item, mismatch)| StoredItem {
            item, mismatch, faults: vec![EntryFault { entry: 7, operation: Operation::Write, code: FaultCode::Os(28) }],
        });
        let message = ToSender::Stored(Stored { items: items.collect(), files: vec![] });
        assert_eq!(decode_message(&encode_message(&message)[4..]), Ok(message));
    }
}
