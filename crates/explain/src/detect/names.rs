//! Names of what the tree of time holds.

use super::View;
use crate::evidence::groups::GroupId;
use crate::evidence::tree::Frame;
use crate::moment::Tid;

impl View<'_> {
    /// Threads of a name; a single one with its id.
    pub fn threads(&self, group: GroupId) -> String {
        let groups = &self.evidence.groups;
        match groups.get(group) {
            Some(own) if !own.many && !groups.is_kernel(group) => self.thread(own.first),
            _ if groups.name(group) == "kworker" => "kworkers".into(),
            _ => groups.name(group).to_string(),
        }
    }

    /// The name of a call or a work function.
    pub fn frame_name(&self, frame: Frame) -> &str {
        match frame {
            Frame::Call(name) | Frame::Work(name) | Frame::Irq(name) => self.name(name),
            _ => "",
        }
    }

    /// A node of the tree.
    pub fn frame(&self, frame: Frame) -> String {
        match frame {
            Frame::Life(group) => self.threads(group),
            Frame::Thread(group, tid) => {
                let file = self.evidence.groups.get(group).map_or(0, |group| group.first.file);
                self.thread(Tid { file, tid })
            }
            Frame::Request(key) => self.subject(key),
            Frame::Call(name) => format!("in {}", self.name(name)),
            Frame::Work(name) => format!("running {}", self.name(name)),
            Frame::Waker(group) => format!("waits for {}", self.threads(group)),
            Frame::Preempts(group) => {
                format!("{} has the CPU and a higher priority", self.threads(group))
            }
            Frame::Has(group) => format!("{} has the CPU", self.threads(group)),
            Frame::Runs => "on a CPU".into(),
            Frame::Guest => "guest".into(),
            Frame::NoCpu => "without a CPU".into(),
            Frame::Idle => "the CPU idle meanwhile".into(),
            Frame::Timer => "asleep until a timer fires".into(),
            Frame::Irq(irq) => format!("asleep until interrupt {}", self.name(irq)),
            Frame::Interrupt => "asleep until an interrupt".into(),
            Frame::Deep => "waiting for a disk, or asleep in the kernel (D)".into(),
            Frame::Stopped(by) => format!("stopped until {} lets it go on", self.threads(by)),
            Frame::Asleep => "asleep".into(),
            Frame::Faults => "page faults".into(),
            Frame::Unknown => "not recorded".into(),
        }
    }
}
