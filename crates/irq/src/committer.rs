//! The thread that commits.
//!
//! A commit waits in the kernel, on a busy host for seconds on end, and nothing but its end
//! ends the wait. So runs are carried out on a thread of their own, whose placement is also
//! theirs alone, and the user's wish to stop is heard beside it: what that thread is in the
//! middle of is left to it, and to the end of the process.

use crate::apparatus::Apparatus;
use crate::bench::Bench;
use crate::config::{Config, Found};
use crate::data::Data;
use crate::error::IrqError;
use crate::plan::IrqPlanned;
use crate::vfio::Lab;
use anyhow::{anyhow, Result};
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::thread::JoinHandle;
use vmeter_base::{clock, CpuList};
use vmeter_model::run::DataRun;
use vmeter_session::failure::{failure, Class};
use vmeter_session::{RunRequest, Runner};

struct Job {
    planned: IrqPlanned,
    dir: PathBuf,
}

enum News {
    Ready(Found),
    Done(Data),
    Failed(IrqError),
    Stopped,
}

/// The thread, seen from outside.
pub struct Committer {
    jobs: Option<Sender<Job>>,
    news: Sender<News>,
    heard: Receiver<News>,
    /// Absent once it is not to be waited for.
    thread: Option<JoinHandle<()>>,
}

fn work(made: Result<impl Apparatus, IrqError>, jobs: &Receiver<Job>, news: &Sender<News>) {
    let apparatus = match made {
        Ok(apparatus) => apparatus,
        Err(error) => return drop(news.send(News::Failed(error))),
    };
    let mut said = news.send(News::Ready(apparatus.found()));
    while let (Ok(()), Ok(job)) = (said, jobs.recv()) {
        said = news.send(match apparatus.carry_out(&job.planned, &job.dir) {
            Ok(data) => News::Done(data),
            Err(error) => News::Failed(error),
        });
    }
}

impl Committer {
    /// Checks the question and the host, and starts what keeps CPUs busy. Of a session that
    /// is gone on with, `before` is what was found when it began.
    ///
    /// # Errors
    /// As [`IrqError`] says.
    pub(crate) fn start(
        asked: Config,
        pin: Option<CpuList>,
        before: Option<Found>,
    ) -> Result<(Self, Found), IrqError> {
        let (jobs, to_do) = channel();
        let (news, heard) = channel();
        let own = news.clone();
        let body = move || match &asked {
            Config::Vm(options) => work(Bench::new(options, pin.as_ref()), &to_do, &own),
            Config::Vfio(options) => {
                work(Lab::new(options, pin.as_ref(), before.as_ref()), &to_do, &own);
            }
        };
        let thread = std::thread::Builder::new().name("committer".into()).spawn(body);
        let thread = Some(thread.map_err(IrqError::Thread)?);
        let committer = Committer { jobs: Some(jobs), news, heard, thread };
        match committer.heard.recv() {
            Ok(News::Ready(found)) => Ok((committer, found)),
            Ok(News::Failed(error)) => Err(error),
            Ok(News::Done(_) | News::Stopped) | Err(_) => Err(died()),
        }
    }

    fn carried_out(&mut self, request: &RunRequest<'_, IrqPlanned>) -> Result<Data> {
        let job = Job { planned: request.planned.clone(), dir: request.dir.to_owned() };
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            return Err(died().into());
        }
        let news = self.news.clone();
        let hearing = request.interrupt.during(move || drop(news.send(News::Stopped)));
        let heard = self.heard.recv();
        drop(hearing);
        match heard {
            Ok(News::Done(data)) => Ok(data),
            Ok(News::Failed(error)) => Err(error.classified()),
            Ok(News::Stopped) => {
                self.thread = None;
                Err(failure(Class::Interrupted, "interrupted"))
            }
            Ok(News::Ready(_)) | Err(_) => Err(anyhow!(died())),
        }
    }
}

fn died() -> IrqError {
    IrqError::Thread(std::io::Error::other("the committing thread has ended"))
}

/// Waits until CPUs are idle and devices given back.
impl Drop for Committer {
    fn drop(&mut self) {
        self.jobs = None;
        self.thread.take().map(JoinHandle::join);
    }
}

impl Runner<IrqPlanned> for Committer {
    type Run = DataRun<Data>;

    /// Of a run that enables vectors, the length is that of the enabling alone.
    fn run(&mut self, request: &RunRequest<'_, IrqPlanned>) -> Result<DataRun<Data>> {
        let begin = clock::read();
        let data = self.carried_out(request)?;
        let total_ns = match &data {
            Data::Enabled(enabled) => enabled.total_ns,
            Data::Together(vms) => vms.iter().copied().max().unwrap_or(0),
            Data::Delivered(_) | Data::Repeated(_) | Data::Traced(_) | Data::NotTraced(_) => {
                clock::monotonic() - begin.monotonic_ns
            }
        };
        Ok(DataRun { head: request.head(begin, total_ns), data })
    }

    fn summary(&self, run: &DataRun<Data>) -> String {
        match &run.data {
            Data::Delivered(d) => format!("{} of {} arrived", d.arrived, d.raised),
            Data::NotTraced(why) => format!("not traced: {why}"),
            Data::Together(vms) => {
                format!("{} VMs in {:.3} ms", vms.len(), run.head.total_ns as f64 / 1e6)
            }
            Data::Enabled(_) | Data::Repeated(_) | Data::Traced(_) => {
                format!("{:.3} ms", run.head.total_ns as f64 / 1e6)
            }
        }
    }
}
