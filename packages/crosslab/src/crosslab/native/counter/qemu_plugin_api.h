// SPDX-License-Identifier: Apache-2.0
// The part of QEMU's TCG plugin interface that the counter uses, declared from its documentation:
// distributions ship the emulator without this header. MLC_RVV_PLUGIN_API is the version:
// 1 (QEMU 4.2 to 8.2), 2 (9.0), 3 (9.1 and newer: instruction bytes are copied).
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef MLC_RVV_PLUGIN_API
#define MLC_RVV_PLUGIN_API 1
#endif

#define EXPORTED __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;

typedef struct {
  const char *target_name;
  struct {
    int min;
    int cur;
  } version;
  bool system_emulation;
  struct {
    int smp_vcpus;
    int max_vcpus;
  } system;
} qemu_info_t;

struct qemu_plugin_tb;
struct qemu_plugin_insn;

enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS = 0 };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_R = 1, QEMU_PLUGIN_MEM_W, QEMU_PLUGIN_MEM_RW };
typedef uint32_t qemu_plugin_meminfo_t;

typedef void (*plugin_tb_translated)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*plugin_executed)(unsigned int vcpu, void *data);
typedef void (*plugin_accessed)(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t address,
                                void *data);
typedef void (*plugin_vcpu)(qemu_plugin_id_t id, unsigned int vcpu);
typedef void (*plugin_at_exit)(qemu_plugin_id_t id, void *data);

extern void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t id, plugin_vcpu cb);
extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, plugin_tb_translated cb);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
                                                   plugin_executed cb,
                                                   enum qemu_plugin_cb_flags flags, void *data);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, plugin_accessed cb,
                                             enum qemu_plugin_cb_flags flags,
                                             enum qemu_plugin_mem_rw rw, void *data);
extern unsigned int qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
extern bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, plugin_at_exit cb, void *data);

extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb,
                                                        size_t index);
extern size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
#if MLC_RVV_PLUGIN_API >= 3
extern size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *target, size_t size);
#else
extern const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
#endif
