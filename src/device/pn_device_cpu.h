/*
 * pn_device_cpu.h - the CPU device's table.
 */
#ifndef PN_DEVICE_CPU_H
#define PN_DEVICE_CPU_H

#include "device/pn_device.h"

PN_INTERNAL const pn_device_ops *pn_device_cpu_ops(void);

#endif /* PN_DEVICE_CPU_H */
