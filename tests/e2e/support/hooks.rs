//! The real storage and the real lanes, with a hook before each request.

use std::fmt;
use std::io;
use std::sync::Arc;

use zmove_disk::{DataFile, FileIo, IoMode, SliceCallback, Span, StorageEngine};
use zmove_transport::{Frame, LaneBreaker, LaneError, LaneSink};
use zmove_types::{Buffer, Stopwatch};

type Before = Box<dyn Fn() + Send + Sync>;

/// Storage that calls a hook before each read or write.
pub(crate) struct HookedDisk {
    before_read: Before,
    before_write: Before,
}

impl HookedDisk {
    pub(crate) fn before_read(before: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            before_read: Box::new(before),
            before_write: Box::new(|| ()),
        })
    }

    pub(crate) fn before_write(before: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            before_read: Box::new(|| ()),
            before_write: Box::new(before),
        })
    }
}

impl FileIo for HookedDisk {
    fn read_some(
        &self,
        way: IoMode<'_>,
        span: Span,
        buffer: Buffer,
        seen: SliceCallback<'_>,
    ) -> (io::Result<usize>, Buffer) {
        StorageEngine::Threads.read_some(way, span, buffer, seen)
    }

    fn write_some(
        &self,
        way: IoMode<'_>,
        span: Span,
        buffer: Buffer,
    ) -> (io::Result<usize>, Buffer) {
        StorageEngine::Threads.write_some(way, span, buffer)
    }

    fn read_part(
        &self,
        file: &DataFile,
        span: Span,
        buffer: Buffer,
        seen: SliceCallback<'_>,
    ) -> (io::Result<usize>, Buffer) {
        (self.before_read)();
        StorageEngine::Threads.read_part(file, span, buffer, seen)
    }

    fn write_part(&self, file: &DataFile, span: Span, buffer: Buffer) -> (io::Result<()>, Buffer) {
        (self.before_write)();
        StorageEngine::Threads.write_part(file, span, buffer)
    }
}

impl fmt::Debug for HookedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedDisk")
    }
}

/// A sending end that calls a hook before each frame with data.
pub(crate) struct HookedSink<F> {
    pub(crate) inner: Box<dyn LaneSink>,
    pub(crate) before_data: F,
}

impl<F: Fn(&mut Stopwatch<'_>) + Send> LaneSink for HookedSink<F> {
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        if frame.header.data_bytes > 0 {
            (self.before_data)(watch);
        }
        self.inner.send(frame, watch)
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        self.inner.finish()
    }

    fn breaker(&self) -> LaneBreaker {
        self.inner.breaker()
    }
}
