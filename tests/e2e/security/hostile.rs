//! A hostile daemon: it requests files that were not offered, claims to have data that it lacks, sends unexpected
//! messages, and ends at any point. The sender sends only its sources, does not hang or panic, and does not report
//! success.

use std::path::Path;

use zmove_sender::PushJob;
use zmove_transport::Frame;
use zmove_types::{GROUP_BYTES, RelPath};
use zmove_wire::limits::{EXTRANEOUS_NAMES_MAX, REQUESTED_ENTRIES_MAX, STORED_ITEMS_MAX};
use zmove_wire::{
    Answer, Batch, BatchEntry, EntryFault, EntryGroup, ExtraneousName, ExtraneousNames, Fault,
    FaultCode, FileDone, Finished, FrameKind, Held, Intent, Open, Operation, PublishedItem,
    Question, Reply, Request, Stored, StoredItem, TargetState, ToReceiver, ToSender, Verdict,
    encode_message,
};

use crate::security::deceiver::{Deceived, Deceiver, Heard, opened, published, stored};
use crate::support::harness::Site;
use crate::support::tree::paint;

/// A source of two small files, next to a private file.
fn site() -> Site {
    let site = Site::local();
    paint(site.source().join("d/one"), 10);
    paint(site.source().join("two"), 20);
    std::fs::write(site.path("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret", site.source().join("link")).unwrap();
    site
}

fn says(messages: &[ToSender]) -> Option<Vec<Vec<u8>>> {
    Some(messages.iter().map(encode_message).collect())
}

/// Sends `message` instead of the permission to send, or right after it.
fn after_leave(message: ToSender) -> Deceived {
    let said = move |heard: &Heard| match heard {
        Heard::Message(ToReceiver::Open(_)) => {
            says(&[opened(TargetState::Populated), message.clone()])
        }
        _ => Some(Vec::new()),
    };
    Deceiver::new(TargetState::Populated, said).deceive(&site().source())
}

#[track_caller]
fn assert_only_sources_were_sent(deceived: &Deceived) {
    let known = ["d/one", "two"];
    assert!(
        deceived
            .paths
            .iter()
            .all(|path| known.contains(&path.as_str())),
        "{:?}",
        deceived.paths
    );
    assert!(!deceived.contents.windows(6).any(|bytes| bytes == b"secret"));
}

/// Returns the number and the files of a request for the files to send.
fn asks_what_to_send(message: &ToReceiver) -> Option<(u64, &[EntryGroup])> {
    match message {
        ToReceiver::Request(Request {
            number,
            question: Question::Send(groups),
        }) => Some((*number, groups)),
        _ => None,
    }
}

fn verdicts(number: u64, verdicts: Vec<Verdict>) -> ToSender {
    ToSender::Reply(Reply {
        number,
        answer: Answer::Verdicts(verdicts),
    })
}

/// An answer without a request is ignored and receives no file.
#[test]
fn a_daemon_that_asks_for_files_that_were_not_offered_gets_none() {
    let site = site();
    let said = |heard: &Heard| match heard {
        Heard::Message(message) => {
            let (number, _) = asks_what_to_send(message)?;
            let more = vec![Verdict::New; REQUESTED_ENTRIES_MAX];
            let held = Held {
                request: number,
                file: u32::MAX,
                first: u32::MAX,
                cvs: vec![[7; 32]],
                end: true,
            };
            says(&[
                verdicts(number + 99, more.clone()),
                ToSender::Held(held),
                verdicts(number, more.clone()),
                verdicts(number, more),
            ])
        }
        _ => None,
    };
    let deceived = Deceiver::new(TargetState::Populated, said).deceive(&site.source());
    assert_eq!(deceived.ended.as_ref().unwrap().counters.files, 2);
    assert_only_sources_were_sent(&deceived);
}

/// The file has only one group and was not offered for resuming, so it is sent whole.
#[test]
fn a_daemon_that_claims_groups_of_a_small_file_gets_it_whole() {
    for verdict in [Verdict::Resume, Verdict::Delta] {
        let said = move |heard: &Heard| match heard {
            Heard::Message(message) => {
                let (number, groups) = asks_what_to_send(message)?;
                let files: usize = groups.iter().map(|group| group.entries.len()).sum();
                let held = |file: usize, end| {
                    let file = u32::try_from(file).unwrap();
                    ToSender::Held(Held {
                        request: number,
                        file,
                        first: 0,
                        cvs: vec![[7; 32]],
                        end,
                    })
                };
                let answer = verdicts(number, vec![verdict; files]);
                let before = (0..files).map(|file| held(file, false));
                let after = (0..files).map(|file| held(file, true));
                says(&before.chain([answer]).chain(after).collect::<Vec<_>>())
            }
            _ => None,
        };
        let deceived = Deceiver::new(TargetState::Populated, said).deceive(&site().source());
        assert_eq!(
            deceived.ended.as_ref().unwrap().counters.files,
            2,
            "{:?}",
            deceived.failed
        );
        assert_only_sources_were_sent(&deceived);
    }
}

/// The daemon claims to have all three groups of a file.
#[test]
fn a_daemon_that_claims_to_have_all_of_a_file_has_not_confirmed_it() {
    let site = Site::local();
    paint(site.source().join("large"), 3 * GROUP_BYTES);
    let said = |heard: &Heard| match heard {
        Heard::Message(message) => {
            let (number, _) = asks_what_to_send(message)?;
            let held = Held {
                request: number,
                file: 0,
                first: 0,
                cvs: vec![[7; 32]; 3],
                end: true,
            };
            let answer = verdicts(number, vec![Verdict::Resume]);
            says(&[ToSender::Held(held), answer])
        }
        _ => None,
    };
    let deceived = Deceiver::new(TargetState::Populated, said).deceive(&site.source());
    let summary = deceived.ended.as_ref().unwrap();
    assert_eq!(
        (summary.counters.files, summary.counters.failed),
        (0, 1),
        "{:?}",
        deceived.failed
    );
    assert!(
        deceived.failed[0].contains("never confirmed"),
        "{:?}",
        deceived.failed
    );
}

#[test]
fn a_daemon_that_calls_a_file_whole_before_it_was_sent_is_broken_off() {
    let site = Site::local();
    paint(site.source().join("large"), 3 * GROUP_BYTES);
    let said = |heard: &Heard| match heard {
        Heard::Frame(frame) if frame.header.kind == FrameKind::Declare => {
            let files = vec![FileDone {
                file: frame.header.file.0,
                fault: None,
            }];
            says(&[ToSender::Stored(Stored {
                items: Vec::new(),
                files,
            })])
        }
        // Sends no receipts. With receipts, the sender might have read everything by then.
        Heard::Frame(_) => Some(Vec::new()),
        _ => None,
    };
    let mut source = std::fs::File::options()
        .write(true)
        .open(site.source().join("large"))
        .unwrap();
    // Larger than the buffers, so that the sender cannot have read all of it.
    std::io::Seek::seek(&mut source, std::io::SeekFrom::Start(200 * GROUP_BYTES)).unwrap();
    std::io::Write::write_all(&mut source, b"end").unwrap();
    let deceived = Deceiver::new(TargetState::Empty, said).deceive(&site.source());
    deceived.is_broken_off("the completion of a file that was not sent completely");
}

#[test]
fn a_daemon_that_acknowledges_unsent_items_is_broken_off() {
    after_leave(stored(u64::MAX)).is_broken_off("a receipt");
}

#[test]
fn a_daemon_that_acknowledges_an_item_twice_is_broken_off() {
    let said = |heard: &Heard| match heard {
        Heard::Frame(frame) => says(&[stored(frame.header.item.0), stored(frame.header.item.0)]),
        Heard::Message(ToReceiver::Announce { .. }) => Some(Vec::new()),
        Heard::Message(_) => None,
    };
    Deceiver::new(TargetState::Empty, said)
        .deceive(&site().source())
        .is_broken_off("a receipt");
}

/// Reports a name for a file that was not stored, for the same file twice, or for a group of a large file.
#[test]
fn a_daemon_that_publishes_items_that_it_has_not_stored_is_broken_off() {
    after_leave(published(0)).is_broken_off("a name");
    let said = |heard: &Heard| match heard {
        Heard::Frame(Frame { header, .. }) => says(&[
            stored(header.item.0),
            published(header.item.0),
            published(header.item.0),
        ]),
        Heard::Message(ToReceiver::Announce { .. }) => Some(Vec::new()),
        Heard::Message(_) => None,
    };
    Deceiver::new(TargetState::Empty, said)
        .deceive(&site().source())
        .is_broken_off("a name");
    let site = Site::local();
    paint(site.source().join("large"), 2 * GROUP_BYTES);
    let said = |heard: &Heard| match heard {
        Heard::Frame(Frame { header, .. }) if header.kind == FrameKind::Chunk => {
            says(&[stored(header.item.0), published(header.item.0)])
        }
        _ => None,
    };
    Deceiver::new(TargetState::Empty, said)
        .deceive(&site.source())
        .is_broken_off("a name");
}

/// The receiver sends nothing without a request, so the session ends as after a lost connection.
#[test]
fn a_push_whose_control_writes_fail_ends_as_a_lost_connection() {
    let jobs: [fn(PushJob) -> PushJob; 2] = [
        |job| job,
        |job| PushJob {
            open: Open {
                intent: Intent::Inspect,
                ..job.open
            },
            ..job
        },
    ];
    for job in jobs {
        let honest = Deceiver::new(TargetState::Populated, |_heard: &Heard| None);
        let deceived = Deceiver {
            writes_max: 1,
            job,
            ..honest
        }
        .deceive(&site().source());
        let error = deceived.ended.unwrap_err();
        assert!(error.is_lost(), "{error}");
    }
}

/// Sends `receipts` for each batch, and reports the end when the announced number of batches has arrived.
fn settling(
    receipts: impl Fn(&Frame) -> Vec<ToSender> + Send + 'static,
) -> impl FnMut(&Heard) -> Option<Vec<Vec<u8>>> + Send + 'static {
    let (mut came, mut announced) = (0, None);
    move |heard| {
        let mut said = match heard {
            Heard::Message(ToReceiver::Announce { items, .. }) => {
                announced = Some(*items);
                Vec::new()
            }
            Heard::Message(_) => return None,
            Heard::Frame(frame) => {
                came += 1;
                receipts(frame)
            }
        };
        if announced == Some(came) {
            said.push(ToSender::Finished(Finished::default()));
        }
        says(&said)
    }
}

/// Stored data may be lost in a power failure. Only published files count as moved.
#[test]
fn a_daemon_that_finishes_without_publishing_is_broken_off() {
    let receipts = |frame: &Frame| vec![stored(frame.header.item.0)];
    let deceived = Deceiver::new(TargetState::Empty, settling(receipts)).deceive(&site().source());
    deceived.is_broken_off("the end before everything");
}

/// The failure is reported once, even if both messages name the file.
#[test]
fn a_file_that_is_not_published_is_reported_once() {
    let receipts = |frame: &Frame| {
        let item = frame.header.item.0;
        let batch = Batch::decode(&frame.head, frame.header.data_bytes).unwrap();
        let entries = batch.groups.iter().flat_map(|group| &group.entries);
        let files = (0..)
            .zip(entries)
            .filter(|(_, entry)| matches!(entry, BatchEntry::File(_)));
        let fault = |entry| EntryFault {
            entry,
            operation: Operation::Flush,
            code: FaultCode::Os(5),
        };
        let faults: Vec<_> = files.map(|(entry, _)| fault(entry)).collect();
        let first = faults.first().copied().into_iter().collect();
        let items = vec![StoredItem {
            item,
            mismatch: false,
            faults: first,
        }];
        let published = vec![PublishedItem { item, faults }];
        vec![
            ToSender::Stored(Stored {
                items,
                files: Vec::new(),
            }),
            ToSender::Published { items: published },
        ]
    };
    let deceived = Deceiver::new(TargetState::Empty, settling(receipts)).deceive(&site().source());
    let summary = deceived.ended.as_ref().unwrap();
    assert_eq!(
        (
            summary.counters.files,
            summary.counters.bytes,
            summary.counters.failed
        ),
        (0, 0, 2),
        "{:?}",
        deceived.failed
    );
    assert!(
        deceived.failed.iter().all(|told| told.contains("flush '")),
        "{:?}",
        deceived.failed
    );
}

#[test]
fn a_daemon_that_finishes_before_it_has_everything_is_broken_off() {
    after_leave(ToSender::Finished(Finished::default())).is_broken_off("the end before everything");
}

#[test]
fn a_daemon_that_answers_the_opening_twice_is_broken_off() {
    after_leave(opened(TargetState::Empty)).is_broken_off("a second answer");
}

/// Lists of each kind that exceed their limits.
#[test]
fn a_daemon_that_sends_huge_lists_is_broken_off() {
    let item = StoredItem {
        item: 0,
        mismatch: true,
        faults: Vec::new(),
    };
    let name = || zmove_types::Name::from_bytes(b"n").unwrap();
    let extra = || ExtraneousName {
        range: 0,
        name: name(),
        directory: true,
    };
    let names = std::iter::repeat_with(extra)
        .take(EXTRANEOUS_NAMES_MAX + 1)
        .collect();
    let lists = [
        verdicts(0, vec![Verdict::New; 2 * REQUESTED_ENTRIES_MAX + 1]),
        ToSender::Stored(Stored {
            items: vec![item; STORED_ITEMS_MAX + 1],
            files: Vec::new(),
        }),
        ToSender::Reply(Reply {
            number: 0,
            answer: Answer::Extraneous(ExtraneousNames {
                names,
                ..ExtraneousNames::default()
            }),
        }),
    ];
    for list in lists {
        after_leave(list).is_broken_off("control");
    }
}

/// Reports about files that were never sent must fill neither the sender's memory nor the user's terminal.
#[test]
fn a_daemon_that_reports_unsent_items_without_end_is_broken_off() {
    let path = RelPath::from_bytes("long/".repeat(600).trim_end_matches('/').as_bytes()).unwrap();
    let fault = Fault {
        path,
        operation: Operation::SetMetadata,
        code: FaultCode::Os(1),
    };
    let held = |end| {
        ToSender::Held(Held {
            request: 0,
            file: 0,
            first: 0,
            cvs: Vec::new(),
            end,
        })
    };
    let files = vec![FileDone {
        file: 7,
        fault: None,
    }];
    for message in [
        ToSender::Fault(fault),
        ToSender::Stored(Stored {
            items: Vec::new(),
            files: Vec::new(),
        }),
        ToSender::Stored(Stored {
            items: Vec::new(),
            files,
        }),
        ToSender::Published { items: Vec::new() },
        held(false),
        held(true),
    ] {
        let shown = format!("{message:?}");
        let said = move |heard: &Heard| match heard {
            Heard::Message(ToReceiver::Open(_)) => {
                let flood = std::iter::repeat_n(encode_message(&message), 20_000);
                Some(
                    std::iter::once(encode_message(&opened(TargetState::Populated)))
                        .chain(flood)
                        .collect(),
                )
            }
            // The push does not end before that.
            _ => Some(Vec::new()),
        };
        let deceived = Deceiver::new(TargetState::Populated, said).deceive(&site().source());
        let told: usize = deceived.failed.iter().map(String::len).sum();
        assert!(told < 4 << 20, "{told} bytes for {shown:.60}");
        deceived.is_broken_off("the receiver broke the protocol");
    }
}

/// Reports more faults for a batch than it has entries, or two for the same entry.
#[test]
fn a_daemon_that_reports_too_many_faults_of_a_batch_is_broken_off() {
    let receipts = |frame: &Frame| {
        let item = frame.header.item.0;
        let fault = EntryFault {
            entry: 0,
            operation: Operation::Flush,
            code: FaultCode::Os(5),
        };
        let items = vec![PublishedItem {
            item,
            faults: vec![fault; 500],
        }];
        vec![stored(item), ToSender::Published { items }]
    };
    let deceived = Deceiver::new(TargetState::Empty, settling(receipts)).deceive(&site().source());
    deceived.is_broken_off("faults of a batch");
}

/// Returns the bytes of a valid message with an invalid name in it.
#[test]
fn a_daemon_that_names_another_path_is_broken_off() {
    let name = zmove_types::Name::from_bytes(b"xx").unwrap();
    for climbing in [b"..", b"/x", b"x\0"] {
        let name = name.clone();
        let said = move |heard: &Heard| match heard {
            Heard::Message(ToReceiver::Open(_)) => {
                let ToSender::Opened(leave) = opened(TargetState::Empty) else {
                    unreachable!()
                };
                let leave = zmove_wire::Opened {
                    single_name: Some(name.clone()),
                    ..leave
                };
                let mut bytes = encode_message(&ToSender::Opened(leave));
                let at = bytes.windows(2).rposition(|pair| pair == b"xx").unwrap();
                bytes[at..at + 2].copy_from_slice(climbing);
                Some(vec![bytes])
            }
            _ => Some(Vec::new()),
        };
        let deceived = Deceiver::new(TargetState::Empty, said).deceive(&site().source());
        deceived.is_broken_off("control");
        // Before the permission, the sender sends entries speculatively, and only from its sources.
        assert_only_sources_were_sent(&deceived);
    }
}

/// A fault about a path that was never sent is reported, and the push fails.
#[test]
fn a_fault_of_a_path_that_was_not_sent_makes_the_push_fail() {
    let path = RelPath::from_bytes(Path::new("etc/shadow").as_os_str().as_encoded_bytes()).unwrap();
    let fault = Fault {
        path,
        operation: Operation::SetMetadata,
        code: FaultCode::Os(1),
    };
    let said = move |heard: &Heard| match heard {
        Heard::Message(ToReceiver::Open(_)) => {
            says(&[opened(TargetState::Empty), ToSender::Fault(fault.clone())])
        }
        _ => None,
    };
    let deceived = Deceiver::new(TargetState::Empty, said).deceive(&site().source());
    assert_eq!(deceived.ended.as_ref().unwrap().counters.failed, 1);
    assert!(
        deceived.failed[0].contains("etc/shadow"),
        "{:?}",
        deceived.failed
    );
    assert_only_sources_were_sent(&deceived);
}
