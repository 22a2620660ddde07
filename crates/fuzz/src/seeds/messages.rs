//! Seeds for control messages: one message of each kind, with at least one element in each of its lists.

use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use zmove_types::{
    Account, Beginning, Change, ChangeKind, Counters, EntryForm, Event, Metadata, MetadataKinds,
    Root, Sample, SharedJobId, Timestamp,
};
use zmove_wire::{
    AccountMatch, AfterErrors, Answer, Begin, BestRate, Compare, CopyOrder, CopyResult, CopyState,
    Differences, DirectoryReplacement, Durability, EarlierSession, EmptySources, EndedCopy,
    EntryFault, EntryGroup, Extension, Extensions, Extraneous, ExtraneousName, ExtraneousNames,
    Fault, FaultCode, Fetch, Fetching, FileDone, FileGroups, FileHash, Finished, FoundSoFar,
    GrantOrder, GroupHashes, GroupRange, Held, HostAddress, Intent, JobGrant, LaneOrder,
    LearnedSettings, Leftover, LeftoverFate, LeftoverKind, ListOrder, Mapping, Missed, NameRange,
    NotKept, NotKeptReason, Open, Opened, Operation, Overwrite, OwnerOrder, PathReport,
    PreserveOptions, Proof, PublishedItem, Question, Refusal, RefusalCode, Relay, RemovalOrder,
    Remove, RemoveGroup, Reply, Request, Role, RuleText, SampleTime, Sampled, SharedJobAnswer,
    SharedJobOpening, SharedJobOrder, SharedJobRequest, SharedJobResult, SignedJobGrant,
    SignedReceipt, SourceEntry, SourceKind, SourceMark, SourceMetadata, SourcePath, StageReport,
    Stored, StoredItem, Summary, SweepOrder, Swept, SweptSize, TargetShape, TargetState,
    ToReceiver, ToSender, ToSource, TransportChoice, Verdict, Zeros, encode_message,
};

use super::{extended_batch, greeting_of, name, path, sample_file, whole_metadata};

pub(crate) fn to_receiver() -> Vec<Vec<u8>> {
    encoded(&requests(), 4)
}

pub(crate) fn to_sender() -> Vec<Vec<u8>> {
    encoded(&replies(), 4)
}

pub(crate) fn to_source() -> Vec<Vec<u8>> {
    let orders = [
        ToSource::Fetch(Box::new(fetch())),
        ToSource::Listed {
            bytes: b"a/b\nc".to_vec(),
        },
        ToSource::Copy(Box::new(copy_order())),
        ToSource::Begin(Begin {
            grant: [4; 32],
            key: [5; 32],
        }),
        ToSource::Grant(Box::new(grant_order())),
        ToSource::Result {
            id: [6; 16],
            stop: true,
        },
    ];
    encoded(&orders, 4)
}

pub(crate) fn job_grant() -> Vec<Vec<u8>> {
    let part = SharedJobOpening {
        job: SharedJobId([9; 16]),
        beginning: Beginning::UnderWay,
        leads: false,
    };
    let tops = vec![name("run7")];
    let granted = Open {
        shared_job: Some(Box::new(part)),
        ..open(TargetShape::Directory { tops })
    };
    let grant = JobGrant {
        node: [1; 32],
        receivers: vec![[2; 32], [3; 32]],
        open: granted,
        not_before: 300,
        not_after: 1 << 40,
    };
    let text = grant.encode();
    let signed = SignedJobGrant {
        grant,
        text,
        certificates: vec![vec![4; 9], vec![5]],
        signature: vec![6; 7],
    };
    vec![signed.encode()]
}

/// Returns a fetch order with at least one element in each of its lists.
fn fetch() -> Fetch {
    let mapping = |from| Mapping {
        to: Account {
            id: 5,
            name: "u".into(),
        },
        from,
    };
    Fetch {
        open: open(TargetShape::Directory { tops: Vec::new() }),
        sources: vec![SourcePath(b"d/*.txt".to_vec())],
        rules: vec![RuleText {
            pattern: b"*.o".to_vec(),
            includes: true,
        }],
        sizes: (1, u64::MAX),
        one_file_system: true,
        list: Some(ListOrder {
            nul: true,
            bytes: 300,
        }),
        removals: Some(RemovalOrder {
            after_errors: AfterErrors::Remove,
            entries_max: Some(1),
            empty_sources: EmptySources::Refuse,
        }),
        owners: OwnerOrder {
            numeric: true,
            users: vec![mapping(AccountMatch::All), mapping(AccountMatch::Ids(1, 2))],
            groups: vec![
                mapping(AccountMatch::Nameless),
                mapping(AccountMatch::Name("g".into())),
            ],
        },
        zeros: Zeros::MadeHoles,
        umask: Some(0o22),
        mtime: Some(Timestamp {
            seconds: -1,
            nanos: 2,
        }),
        rate_max: Some(1),
        lanes: LaneOrder {
            dialled: 2,
            least: Some(2),
            most: 64,
        },
        manifest: true,
        sample_millis: Some(100),
        extensions: later(),
    }
}

/// Returns extensions that a later release may add and this one ignores.
fn later() -> Extensions {
    Extensions(vec![Extension {
        number: 1,
        critical: false,
        value: b"z".to_vec(),
    }])
}

fn copy_order() -> CopyOrder {
    CopyOrder {
        id: [1; 16],
        fetch: fetch(),
        to: HostAddress {
            host: "h".into(),
            port: 300,
        },
        streams: Some(2),
        transport: TransportChoice::Quic,
        clear: true,
        patience_secs: 5,
    }
}

fn grant_order() -> GrantOrder {
    GrantOrder {
        id: [1; 16],
        source: [2; 32],
        open: Open::new(b"t".to_vec(), [3; 16]),
        sources: vec![SourcePath(b"a".to_vec())],
        bytes_max: Some(300),
        entries_max: None,
    }
}

fn receipt() -> SignedReceipt {
    SignedReceipt {
        receipt: vec![1],
        certificate: vec![2],
        signature: vec![3],
    }
}

/// Returns the messages of a sender that are not part of a transfer.
#[expect(clippy::too_many_lines, reason = "a table with a seed of each message")]
fn relays() -> Vec<ToReceiver> {
    let change = |kind, form| Event::Listed {
        changes: vec![Change {
            path: path("d/f"),
            kind,
            form,
        }],
    };
    let told = vec![
        Event::Found { files: 1, bytes: 0 },
        Event::ScanEnded,
        Event::FirstByte(Duration::from_micros(300)),
        Event::LaneUp { lanes: 2 },
        Event::Resent { what: "r".into() },
        Event::Failed {
            message: "f".into(),
        },
        Event::NotKept {
            message: "n".into(),
        },
        Event::Warned {
            message: "w".into(),
        },
        Event::Limited { by: "path".into() },
        Event::Sampled(Sample {
            bytes_acked: Some(1),
            ..Sample::default()
        }),
        change(ChangeKind::Added, EntryForm::File),
        change(
            ChangeKind::Changed("time".into()),
            EntryForm::Symlink(b"t"[..].into()),
        ),
        change(ChangeKind::Removed, EntryForm::Directory),
        change(ChangeKind::Added, EntryForm::Link(path("d/g"))),
        Event::Flushing,
        Event::Answered,
    ];
    let summary = Summary {
        counters: Counters {
            added: 1,
            changed: 300,
            ..Counters::default()
        },
        not_kept: vec![NotKept::new(
            MetadataKinds::OWNER,
            NotKeptReason::NotPermitted,
            1,
        )],
        path: Some(PathReport {
            bytes_acked: vec![1],
            ..PathReport::default()
        }),
        is_preview: true,
        learnt: Some(LearnedSettings {
            lanes: 3,
            loss_tolerant: true,
        }),
        at_best: Some(BestRate {
            bytes_per_second: 4,
            round_trip: Duration::from_micros(5),
        }),
        receipt: Some(Box::new(receipt())),
        ..Summary::default()
    };
    let refusal = Refusal {
        code: RefusalCode::Failed,
        text: "t".into(),
    };
    let relays = [
        Relay::Told(told),
        Relay::SessionBegins,
        Relay::Hashed(vec![FileHash {
            path: path("d/f"),
            root: Root([9; 32]),
        }]),
        Relay::Looked(vec![FileHash {
            path: path("d/g"),
            root: Root([8; 32]),
        }]),
        Relay::Lanes(2),
        Relay::Account(Box::new(summary.into())),
        Relay::Broken(refusal),
    ];
    relays.map(ToReceiver::Relay).into()
}

/// Returns a greeting followed by all messages of a sender.
pub(crate) fn control() -> Vec<Vec<u8>> {
    let greeting = greeting_of(Role::Control).encode().to_vec();
    vec![[greeting, encoded(&requests(), 0).concat()].concat()]
}

/// Encodes the messages and removes the first `skipped` bytes of each, which may be its length.
fn encoded<M: Serialize>(messages: &[M], skipped: usize) -> Vec<Vec<u8>> {
    messages
        .iter()
        .map(|message| encode_message(message)[skipped..].to_vec())
        .collect()
}

fn requests() -> Vec<ToReceiver> {
    let tops = vec![name("run7")];
    let shapes = [
        TargetShape::Single { name: name("f") },
        TargetShape::Directory { tops },
    ];
    let [single, directory] = shapes.map(open);
    let mut requests = vec![ToReceiver::Open(single), ToReceiver::Open(directory)];
    requests.extend([
        request(Question::Send(vec![files()])),
        ToReceiver::Abandon { file: 1 },
        ToReceiver::Found(FoundSoFar {
            files: 1,
            bytes: 300,
            skipped_bytes: 2,
            all: true,
        }),
        ToReceiver::Announce {
            items: 1,
            mismatches: 300,
        },
        ToReceiver::LaneLost {
            items: vec![1, 300],
        },
        request(Question::Report(vec![entries()])),
        request(Question::Extraneous(vec![listed()])),
        ToReceiver::Remove(Remove {
            remove: 1,
            groups: vec![RemoveGroup {
                directory: path("d"),
                names: vec![name("x")],
            }],
        }),
        ToReceiver::Sample {
            sample: 1,
            when: SampleTime::Now,
        },
        ToReceiver::Sample {
            sample: 300,
            when: SampleTime::Ended(21),
        },
        request(Question::Send(vec![files_with_owners()])),
        request(Question::Report(vec![entries_with_attributes()])),
        request(Question::Hash(FileGroups {
            path: path("d/f"),
            first: 2,
            count: 3,
        })),
        ToReceiver::Sweep(SweepOrder {
            bytes: 1 << 28,
            millis: 5_000,
        }),
    ]);
    requests.extend(relays());
    requests.extend(job_orders());
    requests.push(ToReceiver::Open(in_a_job()));
    requests.push(ToReceiver::Open(Open {
        intent: Intent::Clean,
        ..Open::new(b"/d".to_vec(), [7; 16])
    }));
    requests
}

/// Returns all orders of a sender in a job.
fn job_orders() -> Vec<ToReceiver> {
    let orders = [
        SharedJobOrder::Settle,
        SharedJobOrder::Commit {
            head: sample_file().encode(),
        },
        SharedJobOrder::SetDirectories {
            head: extended_batch().encode(),
        },
        SharedJobOrder::Close,
        SharedJobOrder::Ping,
    ];
    (1..)
        .zip(orders)
        .map(|(number, order)| ToReceiver::SharedJob(SharedJobRequest { number, order }))
        .collect()
}

/// Returns the opening of a transfer that is part of a job.
fn in_a_job() -> Open {
    let shared_job = Some(Box::new(SharedJobOpening {
        job: SharedJobId([3; 16]),
        beginning: Beginning::Allowed,
        leads: true,
    }));
    Open {
        shared_job,
        ..Open::new(b"t".to_vec(), [3; 16])
    }
}

/// Returns all answers of a receiver to the orders of a job.
fn job_answers() -> Vec<ToSender> {
    let fault = EntryFault {
        entry: 0,
        operation: Operation::SetMetadata,
        code: FaultCode::Os(1),
    };
    let results = [
        SharedJobResult::Done,
        SharedJobResult::Failed(Operation::Rename, FaultCode::JobEnded),
        SharedJobResult::Missing(vec![GroupRange::new(1, 300)]),
        SharedJobResult::DirectoriesSet(vec![fault]),
        SharedJobResult::Settled(vec![NotKept::new(
            MetadataKinds::OWNER,
            NotKeptReason::NoRoom,
            1,
        )]),
    ];
    (1..)
        .zip(results)
        .map(|(number, result)| ToSender::SharedJob(SharedJobAnswer { number, result }))
        .collect()
}

fn open(shape: TargetShape) -> Open {
    Open {
        target: b"/d".to_vec(),
        shape,
        compare: Compare::Checksum,
        durability: Durability::End,
        delta: true,
        run: [7; 16],
        earlier: Some(EarlierSession {
            process: "1f-2-3-4".into(),
            lease_left_ms: 10_000,
        }),
        overwrite: Overwrite::Older,
        intent: Intent::Inspect,
        extraneous: Extraneous::Goes,
        inplace: true,
        keeping: PreserveOptions::default(),
        verify: false,
        proof: Proof::Media,
        grant: None,
        removals_max: Some(7),
        known_state: None,
        shared_job: None,
        in_the_way: DirectoryReplacement::Goes,
        protected: vec![RuleText {
            pattern: b"*.o".to_vec(),
            includes: false,
        }],
        extensions: later(),
    }
}

fn request(question: Question) -> ToReceiver {
    ToReceiver::Request(Request {
        number: 1,
        question,
    })
}

fn reply(answer: Answer) -> ToSender {
    ToSender::Reply(Reply { number: 1, answer })
}

fn entry(kind: SourceKind, metadata: Metadata) -> SourceEntry {
    SourceEntry {
        name: name("e"),
        kind,
        metadata: SourceMetadata {
            metadata,
            xattrs: None,
        },
    }
}

fn files() -> EntryGroup {
    let mark = Some(SourceMark {
        inode: 1,
        ctime: Timestamp {
            seconds: -1,
            nanos: 2,
        },
    });
    let mtime = Timestamp {
        seconds: 1_700_000_000,
        nanos: 5,
    };
    let file = |bytes, mark| {
        let kind = SourceKind::File { bytes, mark };
        entry(kind, Metadata::new(0o644, mtime))
    };
    EntryGroup {
        directory: path("d"),
        itself: None,
        entries: vec![file(9 << 20, mark), file(1, None)],
    }
}

fn entries() -> EntryGroup {
    let mtime = Timestamp {
        seconds: -1,
        nanos: 3,
    };
    let metadata = Metadata::new(0o755, mtime);
    let kinds = [
        SourceKind::File {
            bytes: 5,
            mark: None,
        },
        SourceKind::Directory,
        SourceKind::Symlink {
            target: b"t".to_vec(),
        },
        SourceKind::Link {
            bytes: 5,
            first: path("d/f"),
        },
    ];
    EntryGroup {
        directory: path("d"),
        itself: Some(SourceMetadata {
            metadata: metadata.clone(),
            xattrs: None,
        }),
        entries: kinds.map(|kind| entry(kind, metadata.clone())).into(),
    }
}

fn files_with_owners() -> EntryGroup {
    let mut files = files();
    for file in &mut files.entries {
        let mut metadata = whole_metadata();
        let extra = metadata.extra.as_mut().map(Arc::make_mut);
        extra.expect("it has one").xattrs.clear();
        file.metadata.metadata = metadata;
    }
    files.entries[0].metadata.xattrs = Some(Box::new([5; 32]));
    files
}

fn entries_with_attributes() -> EntryGroup {
    let mut entries = entries();
    entries.itself = Some(SourceMetadata {
        metadata: Metadata::default(),
        xattrs: Some(Box::new([6; 32])),
    });
    entries
}

fn listed() -> NameRange {
    let names = ["b", "c"].map(name).into();
    NameRange {
        directory: path("d"),
        after: Some(name("a")),
        names,
        open: true,
    }
}

fn replies() -> Vec<ToSender> {
    [
        replies_to_orders(),
        replies_to_openings(),
        replies_in_transfers(),
        replies_beside_transfers(),
        job_answers(),
    ]
    .concat()
}

fn replies_to_orders() -> Vec<ToSender> {
    vec![
        ToSender::Fetching(Fetching { lanes_max: 300 }),
        ToSender::Granted([4; 32]),
        ToSender::Copy(CopyState::Ready),
        ToSender::Copy(CopyState::Follows { id: [7; 16] }),
        ToSender::Receipt(receipt()),
        ToSender::LaneFailed,
        ToSender::HeldUp {
            text: "another push".to_owned(),
        },
        ToSender::Leftover(Leftover {
            path: path("d/.zmove-1"),
            kind: LeftoverKind::Part,
            bytes: 300,
            fate: LeftoverFate::StaysUntil { seconds: 300 },
        }),
        ToSender::Result(CopyResult::Runs),
        ToSender::Result(CopyResult::Received(receipt())),
        ToSender::Result(CopyResult::Ended(Box::new(EndedCopy {
            to: HostAddress {
                host: "h".into(),
                port: 300,
            },
            ended: Err(Refusal {
                code: RefusalCode::Broken,
                text: "t".into(),
            }),
            strict: true,
        }))),
    ]
}

fn replies_to_openings() -> Vec<ToSender> {
    let single_name = Some(name("f"));
    vec![
        ToSender::Opened(Opened {
            state: TargetState::Populated,
            lanes_max: 64,
            single_name,
            free_bytes: Some(300),
            process: "1f-2-3-4".into(),
            extensions: Extensions::NONE,
        }),
        ToSender::Opened(Opened {
            state: TargetState::Empty,
            lanes_max: 8,
            single_name: None,
            free_bytes: None,
            process: String::new(),
            extensions: later(),
        }),
        ToSender::NotKept {
            counts: vec![NotKept::new(MetadataKinds::ACLS, NotKeptReason::Os(5), 300)],
        },
        ToSender::Missed {
            entries: vec![Missed {
                path: path("d/f"),
                lacks: vec![NotKept::new(MetadataKinds::OWNER, NotKeptReason::NoRoom, 1)],
            }],
        },
        ToSender::Refused(Refusal {
            code: RefusalCode::Denied,
            text: "no".into(),
        }),
        ToSender::Refused(Refusal {
            code: RefusalCode::NotUnderWay,
            text: "it has ended".into(),
        }),
    ]
}

fn replies_in_transfers() -> Vec<ToSender> {
    let fault = Fault {
        path: path("d/f"),
        operation: Operation::Write,
        code: FaultCode::Os(28),
    };
    let stage = StageReport {
        busy_us: 1,
        starved_us: 300,
        blocked_us: 70_000,
        paced_us: 7,
    };
    vec![
        reply(Answer::Verdicts(vec![
            Verdict::Same,
            Verdict::Contents(Differences::MODE, [7; 32]),
            Verdict::Delta,
            Verdict::Set(Differences::SIZE.and(Differences::TIME)),
            Verdict::Replace(Differences::TYPE),
            Verdict::Fails(Operation::List, FaultCode::Os(13)),
        ])),
        ToSender::Stored(stored()),
        ToSender::Published {
            items: vec![PublishedItem {
                item: 5,
                faults: stored().items.remove(0).faults,
            }],
        },
        ToSender::Fault(fault),
        ToSender::Finished(Finished {
            receive: stage,
            store: stage,
            flush_us: 5,
            cpu_us: 6,
        }),
        ToSender::Held(Held {
            request: 1,
            file: 2,
            first: 3,
            cvs: vec![[8; 32]; 2],
            end: true,
        }),
    ]
}

/// Returns replies that are not part of a transfer: those of previews, mirrors, probes and sweeps, among others.
fn replies_beside_transfers() -> Vec<ToSender> {
    vec![
        reply(Answer::Extraneous(ExtraneousNames {
            names: vec![ExtraneousName {
                range: 0,
                name: name("x"),
                directory: true,
            }],
            rest: Some((0, name("x"))),
            faults: vec![(1, FaultCode::Os(13))],
        })),
        ToSender::Removed {
            remove: 1,
            entries: 300,
        },
        ToSender::Counters(
            Counters {
                replaced_below: 300,
                ..Counters::default()
            }
            .into(),
        ),
        ToSender::RateMax {
            bytes_per_second: 1 << 30,
        },
        reply(Answer::Hashes(GroupHashes {
            values: vec![None, Some([7; 32])],
            fault: Some(FaultCode::Os(5)),
        })),
        ToSender::Sampled(Sampled {
            sample: 1,
            clock_us: 300,
            first_us: Some(4),
            bytes: 1 << 40,
            cpu_us: 5,
        }),
        ToSender::Swept(Swept {
            sizes: vec![SweptSize {
                file_bytes: 1024,
                write: Some(70_000),
                read: None,
            }],
            complete: true,
            fault: Some((Operation::Write, FaultCode::Os(28))),
        }),
    ]
}

fn stored() -> Stored {
    let fault = EntryFault {
        entry: 7,
        operation: Operation::Rename,
        code: FaultCode::DirectoryInTheWay,
    };
    Stored {
        items: vec![StoredItem {
            item: 5,
            mismatch: true,
            faults: vec![fault],
        }],
        files: vec![FileDone {
            file: 6,
            fault: Some((Operation::Flush, FaultCode::Os(5))),
        }],
    }
}
