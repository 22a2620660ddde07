//! A sender with its own receiver, connected by the memory transport.

use super::*;
use crate::rights::grant::OwnerPermission;
use crate::rights::grant::Rights;

/// A sender with its own receiver.
pub(super) struct Mover {
    writer: ControlWriter,
    inbox: Inbox<ToSender>,
    lane: Box<dyn LaneSink>,
    clock: StageClock,
    items: u64,
    session: JoinHandle<Result<SessionReport, SessionError>>,
    pub(super) faults: Vec<FaultCode>,
    answers: BTreeMap<u64, SharedJobResult>,
    published: usize,
    orders: u64,
}

impl Mover {
    /// Stores the first group of a file, and orders the receiver to flush the group.
    pub(super) async fn first_group(&mut self, head: &FileHead, contents: &[u8]) {
        self.declare(1, head);
        self.chunk(1, 0, contents);
        self.stored(1).await;
        assert_eq!(self.settle().await, SETTLED);
    }

    pub(super) async fn open(root: &Path) -> Self {
        Self::try_open(root, open(Some(part()))).await.unwrap()
    }

    pub(super) async fn try_open(root: &Path, open: Open) -> Result<Self, Refusal> {
        let ((mut reader, mut writer), control) = memory_control();
        let (lanes_in, lanes) = mpsc::channel(1);
        let (lane, source) = memory_lane();
        lanes_in.try_send(source).unwrap();
        let rights = Rights {
            access: WriteAccess::Beneath(vec![root.to_owned()].into()),
            owning: OwnerPermission::Allowed,
            ..Rights::default()
        };
        let session = Session {
            config: ReceiverConfig {
                rights,
                ..ReceiverConfig::default()
            },
            ..Session::new(TransferId(open.run), control, lanes)
        };
        let session = tokio::spawn(run_session(session, std::future::pending()));
        writer
            .send(&encode_message(&ToReceiver::Open(open)))
            .await
            .unwrap();
        reader.greeting().await.unwrap();
        let mut inbox = reader.into_inbox(decode_message::<ToSender>, 64);
        loop {
            match inbox.recv().await.unwrap().unwrap() {
                ToSender::Refused(refusal) => return Err(refusal),
                ToSender::Opened(_) => break,
                _ => {}
            }
        }
        Ok(Self {
            writer,
            inbox,
            lane,
            clock: StageClock::default(),
            items: 0,
            session,
            faults: Vec::new(),
            answers: BTreeMap::new(),
            published: 0,
            orders: 0,
        })
    }

    fn send(&mut self, frame: Frame) {
        tokio::task::block_in_place(|| self.lane.send(frame, &mut self.clock.start()).unwrap());
    }

    fn item(&mut self) -> ItemId {
        self.items += 1;
        ItemId(self.items - 1)
    }

    pub(super) fn batch(&mut self, directory: &str, entries: Vec<BatchEntry>, data: &[u8]) {
        let groups = vec![DirectoryGroup {
            directory: path(directory),
            entries,
        }];
        let head = Batch { groups }.encode();
        let content = *blake3::hash(&head).as_bytes();
        let header = FrameHeader {
            kind: FrameKind::Batch,
            item: self.item(),
            ..FrameHeader::default()
        };
        self.send(frame(header, head, &content, data));
    }

    pub(super) fn declare(&mut self, file: u64, head: &FileHead) {
        let head = head.encode();
        let content = *blake3::hash(&head).as_bytes();
        let header = FrameHeader {
            kind: FrameKind::Declare,
            file: FileId(file),
            ..FrameHeader::default()
        };
        self.send(frame(header, head, &content, &[]));
    }

    pub(super) fn chunk(&mut self, file: u64, group: u32, contents: &[u8]) {
        let at = usize::try_from(GROUP_BYTES).unwrap() * group as usize;
        let data = &contents[at..contents
            .len()
            .min(at + usize::try_from(GROUP_BYTES).unwrap())];
        let item = self.item();
        let header = FrameHeader {
            kind: FrameKind::Chunk,
            file: FileId(file),
            group,
            item,
            ..FrameHeader::default()
        };
        self.send(frame(header, Vec::new(), &group_cv(group, data).0, data));
    }

    /// Processes the next message of the receiver. Returns `false` at the end of the messages.
    async fn hear(&mut self, stored: &mut usize) -> bool {
        let Some(Ok(message)) = self.inbox.recv().await else {
            return false;
        };
        match message {
            ToSender::Stored(told) => {
                *stored += told.items.len();
                let files = told.files.iter().filter_map(|file| file.fault);
                self.faults.extend(files.map(|(_, code)| code));
                self.faults.extend(
                    told.items
                        .iter()
                        .flat_map(|item| &item.faults)
                        .map(|fault| fault.code),
                );
            }
            ToSender::Published { items } => {
                self.published += items.len();
                self.faults.extend(
                    items
                        .iter()
                        .flat_map(|item| &item.faults)
                        .map(|fault| fault.code),
                );
            }
            ToSender::Fault(fault) => self.faults.push(fault.code),
            ToSender::SharedJob(SharedJobAnswer { number, result }) => {
                drop(self.answers.insert(number, result))
            }
            _ => {}
        }
        true
    }

    /// Waits until `items` more items are stored.
    pub(super) async fn stored(&mut self, items: usize) {
        let mut stored = 0;
        while stored < items {
            assert!(self.hear(&mut stored).await, "broken off");
        }
    }

    async fn say(&mut self, order: SharedJobOrder) -> u64 {
        self.orders += 1;
        let request = SharedJobRequest {
            number: self.orders,
            order,
        };
        self.writer
            .send(&encode_message(&ToReceiver::SharedJob(request)))
            .await
            .unwrap();
        self.orders
    }

    async fn answer(&mut self, number: u64) -> SharedJobResult {
        loop {
            if let Some(result) = self.answers.remove(&number) {
                return result;
            }
            assert!(self.hear(&mut 0).await, "broken off");
        }
    }

    pub(super) async fn order(&mut self, order: SharedJobOrder) -> SharedJobResult {
        let number = self.say(order).await;
        self.answer(number).await
    }

    /// Orders the receiver to publish and flush everything that was sent.
    pub(super) async fn settle(&mut self) -> SharedJobResult {
        self.order(SharedJobOrder::Settle).await
    }

    pub(super) async fn commit(&mut self, head: &FileHead) -> SharedJobResult {
        self.order(SharedJobOrder::Commit {
            head: head.encode(),
        })
        .await
    }

    /// Ends the session successfully.
    pub(super) async fn finish(mut self) {
        let announce = ToReceiver::Announce {
            items: self.items,
            mismatches: 0,
        };
        self.writer.send(&encode_message(&announce)).await.unwrap();
        while self.hear(&mut 0).await {}
        drop((self.writer, self.inbox, self.lane));
        self.session.await.unwrap().unwrap();
    }

    /// Waits until the receiver ends the session. Returns the number of items that it has stored.
    pub(super) async fn broken(mut self) -> usize {
        let mut stored = 0;
        while stored == 0 && self.hear(&mut stored).await {}
        drop((self.writer, self.inbox, self.lane));
        self.session.await.unwrap().unwrap_err();
        stored
    }

    /// Ends the session as if the sender had died.
    pub(super) async fn die(self) {
        drop((self.writer, self.inbox, self.lane));
        self.session.await.unwrap().unwrap_err();
    }
}
