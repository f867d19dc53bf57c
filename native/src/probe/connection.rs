//! A connection that notes when it was there, when the last of a request went out and when each piece came in.
//!
//! It changes no byte. Invariant: an instant is taken before a write and after a read, so that what is measured between
//! them is never shorter than what the server saw.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};

/// What was noted of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    /// How long it took to be there, TLS included, the look-up of the name not.
    pub connect: Option<Duration>,
    /// Before the last write so far.
    pub sent: Option<Instant>,
    /// After the last read so far.
    pub arrived: Option<Instant>,
}

/// The notes of one connection, shared between it and its reader.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<Marks>>);

impl Watch {
    /// What was noted so far.
    pub fn marks(&self) -> Marks {
        *self.marks_mut()
    }

    fn marks_mut(&self) -> MutexGuard<'_, Marks> {
        // Each mark is written whole or not at all.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes connections that are watched.
#[derive(Debug)]
pub struct Watched {
    /// Makes them; shared, because it keeps what TLS needs.
    pub inner: Arc<DefaultConnector>,
    /// Where the notes go.
    pub watch: Watch,
}

impl Connector<()> for Watched {
    type Out = WatchedTransport;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<()>,
    ) -> Result<Option<WatchedTransport>, ureq::Error> {
        let began = Instant::now();
        let transport = self.inner.connect(details, chained)?;
        let watch = self.watch.clone();
        watch.marks_mut().connect = Some(began.elapsed());
        Ok(transport.map(|inner| WatchedTransport { inner, watch }))
    }
}

/// See the module.
pub struct WatchedTransport {
    inner: Box<dyn Transport>,
    watch: Watch,
}

impl fmt::Debug for WatchedTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedTransport").field(&self.inner).finish()
    }
}

impl Transport for WatchedTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.watch.marks_mut().sent = Some(Instant::now());
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let came = self.inner.await_input(timeout)?;
        self.watch.marks_mut().arrived = Some(Instant::now());
        Ok(came)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
