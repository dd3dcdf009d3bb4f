//! Event format texts, as in tracefs `events/*/*/format`.
//!
//! Offsets and sizes come from here and from nowhere else: they differ between
//! kernels and architectures.

use crate::event::{EventType, Field, FieldKind};

/// Parses one format text into the kernel's event id and an [`EventType`].
///
/// None if the text has no `name:` or no `ID:`; a `field:` line that can't be
/// understood is left out.
pub fn parse_format(system: &str, text: &str) -> Option<(u16, EventType)> {
    let mut kind = EventType { system: system.to_string(), ..EventType::default() };
    let mut id = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("name:") {
            kind.name = name.trim().to_string();
        } else if let Some(number) = line.strip_prefix("ID:") {
            id = number.trim().parse().ok();
        } else if let Some(print) = line.strip_prefix("print fmt:") {
            kind.print_fmt = print.trim().to_string();
        } else if let Some(field) = line.trim_start().strip_prefix("field:") {
            kind.fields.extend(parse_field(field));
        }
    }
    if kind.name.is_empty() {
        return None;
    }
    Some((id?, kind))
}

/// Parses `type name[n];\toffset:8;\tsize:4;\tsigned:0;`.
pub fn parse_field(text: &str) -> Option<Field> {
    let mut parts = text.split(';').map(str::trim);
    let declaration = parts.next()?;
    let mut field = Field::default();
    let mut have = (false, false);
    for part in parts {
        if let Some(offset) = part.strip_prefix("offset:") {
            field.offset = offset.parse().ok()?;
            have.0 = true;
        } else if let Some(size) = part.strip_prefix("size:") {
            field.size = size.parse().ok()?;
            have.1 = true;
        } else if let Some(signed) = part.strip_prefix("signed:") {
            field.signed = signed == "1";
        }
    }
    if have != (true, true) {
        return None;
    }
    field.kind = if declaration.starts_with("__data_loc") {
        FieldKind::DataLoc
    } else if declaration.starts_with("__rel_loc") {
        FieldKind::RelLoc
    } else {
        FieldKind::Plain
    };
    let plain = declaration.split('[').next()?.trim_end();
    let start = plain.rfind(|c: char| c.is_whitespace() || c == '*').map_or(0, |at| at + 1);
    // `__data_loc char[] name`: the name follows the brackets.
    let name = match (field.kind, declaration.rsplit(|c: char| c.is_whitespace()).next()) {
        (FieldKind::Plain, _) => &plain[start..],
        (_, last) => last?,
    };
    field.name = name.to_string();
    field.type_name = declaration.to_string();
    (!field.name.is_empty()).then_some(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_text_gives_name_id_and_fields() {
        let text = "name: irq_handler_entry\nID: 155\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;\n\
            \tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:0;\n\
            \tfield:char comm[16];\toffset:16;\tsize:16;\tsigned:0;\n\
            \tfield:const void *work;\toffset:32;\tsize:8;\tsigned:0;\n\n\
            print fmt: \"irq=%d name=%s\", REC->irq, __get_str(name)\n";
        let (id, kind) = parse_format("irq", text).expect("a whole text");
        assert_eq!((id, kind.name.as_str()), (155, "irq_handler_entry"));
        let names: Vec<&str> = kind.fields.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["common_type", "common_pid", "irq", "name", "comm", "work"]);
        assert_eq!(kind.field("name").map(|f| f.kind), Some(FieldKind::DataLoc));
        assert!(kind.print_fmt.starts_with("\"irq=%d"));
        assert_eq!(
            kind.int("irq").get(&[0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]),
            Some(-2i64 as u64)
        );
        assert_eq!(kind.int("irq").get(&[0; 11]), None);
    }
}
